// SPDX-License-Identifier: Apache-2.0
// dynamic_quantize for one element; dynamic_quantize.py is the specification.
#pragma once

#include <array>

#include "rounding.hpp"

namespace anybit {

enum class Target : std::uint8_t { s8, u8 };
enum class Granularity : std::uint8_t { per_tensor, per_channel };
enum class Arithmetic : std::uint8_t { divide, reciprocal };

constexpr std::string_view name_of(Target target) { return target == Target::s8 ? "s8" : "u8"; }
constexpr std::string_view name_of(Granularity granularity) {
  return granularity == Granularity::per_tensor ? "per_tensor" : "per_channel";
}
constexpr std::string_view name_of(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::divide ? "divide" : "reciprocal";
}

// Both choices by name; each has number 0 or 1.
template <class Choice>
void choose(std::string_view attribute, std::string_view text, Choice& choice) {
  for (const Choice candidate : {Choice{0}, Choice{1}})
    if (text == name_of(candidate)) {
      choice = candidate;
      return;
    }
  throw Error(Error::Kind::value, std::string(attribute) + " must be " +
                                      std::string(name_of(Choice{0})) + " or " +
                                      std::string(name_of(Choice{1})) + ", got " + quoted(text));
}

inline void parse(std::string_view text, Target& target) {
  if (text == "int8" || text == "uint8") target = text == "int8" ? Target::s8 : Target::u8;
  else choose("dtype", text, target);
}
inline void parse(std::string_view text, Granularity& granularity) {
  choose("qtype", text, granularity);
}
inline void parse(std::string_view text, Arithmetic& arithmetic) {
  choose("arithmetic", text, arithmetic);
}

inline constexpr std::int64_t default_axis = 1;

// The axis along which the 1-D parameters lie; -1: one element for the whole tensor.
inline int axis_of(Granularity granularity, std::int64_t axis, int rank) {
  const bool per_tensor = granularity == Granularity::per_tensor;
  // Only the default may name an axis that src lacks, and only where it is not used.
  if (per_tensor && axis == default_axis) return -1;
  if (axis < -rank || axis >= rank)
    throw Error(Error::Kind::value, "axis must be in [" + std::to_string(-rank) + ", " +
                                        std::to_string(rank - 1) + "] for src of rank " +
                                        std::to_string(rank) + ", got " + std::to_string(axis));
  if (per_tensor) return -1;
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

struct DynamicQuantize {
  static constexpr std::string_view name = "dynamic_quantize";
  static constexpr OnnxName onnx{"DynamicQuantize", "anybit"};
  static constexpr std::array inputs = {Input{"src", float32_only}, Input{"scales", float32_only},
                                        Input{"zps", small_integer, true, 0}};

  struct Attributes {
    Target target = Target::s8;
    Granularity granularity = Granularity::per_tensor;
    std::int64_t axis = default_axis;
    Arithmetic arithmetic = Arithmetic::divide;
    constexpr void visit(auto&& visitor) {
      visitor("dtype", target, "dst");
      visitor("qtype", granularity);
      visitor("axis", axis);
      visitor("arithmetic", arithmetic);
    }
  };

  static ElementType result_type(const Attributes& attributes) {
    return attributes.target == Target::s8 ? ElementType::int8 : ElementType::uint8;
  }

  static int parameter_axis(const Attributes& attributes, int rank) {
    return axis_of(attributes.granularity, attributes.axis, rank);
  }

  static constexpr int variants = 4;
  static int variant(const Attributes& attributes) {
    return static_cast<int>(attributes.target) + 2 * static_cast<int>(attributes.arithmetic);
  }

  template <int variant>
  using Result = std::conditional_t<variant % 2 == 0, std::int8_t, std::uint8_t>;

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 4> prepare(const Attributes&, T scale,
                                                         double zero_point) {
    using Limits = std::numeric_limits<Result<variant>>;
    return {variant < 2 ? scale : T(1) / scale, static_cast<T>(zero_point), T(Limits::min()),
            T(Limits::max())};
  }

  // The bounds are parameters, not constants: compilers turn these comparisons into one instruction
  // each as long as they do not know that the bounds are in order.
  template <int variant, class T>
  [[gnu::always_inline]] static auto apply(T x, T scale, T zero_point, T lowest, T highest) {
    T y = (variant < 2 ? x / scale : x * scale) + zero_point;
    y = y > lowest ? y : lowest;  // NaN gives the lowest value
    y = y < highest ? y : highest;
    return static_cast<Result<variant>>(static_cast<std::int32_t>(std::nearbyint(y)));
  }
};

}  // namespace anybit
