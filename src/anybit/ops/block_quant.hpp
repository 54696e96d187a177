// SPDX-License-Identifier: Apache-2.0
// block_quant for one block and one element; block_quant.py is the specification.
#pragma once

#include <array>

#include "blocks.hpp"
#include "powers.hpp"
#include "rounding.hpp"

namespace anybit {

// The largest scale whose product with `largest` is finite: digits of the largest number divided by
// those of an integer, truncated to T. `spare` bits more leave enough of them for integers of 8
// bits; other formats do not use it.
template <class T>
constexpr double largest_scale_of(double largest) {
  using Limits = std::numeric_limits<T>;
  constexpr int spare = 8;
  constexpr std::uint64_t digits = (std::uint64_t{1} << Limits::digits) - 1;
  const std::uint64_t quotient = (digits << spare) / static_cast<std::uint64_t>(largest);
  const int excess = at_least(static_cast<int>(std::bit_width(quotient)) - Limits::digits, 0);
  const auto truncated = static_cast<double>(quotient >> excess << excess);
  return truncated * normal_power<double>(Limits::max_exponent - Limits::digits - spare);
}

// A format of blocks. Elements have `mantissa` bits after the leading one, even spacing below
// 2^smallest_exponent, and end at `largest`.
struct BlockElements {
  std::string_view name;
  int block;
  int mantissa;
  int smallest_exponent;
  double largest;
  // The largest scales whose product with `largest` is finite.
  double largest_scale_in_float32 = largest_scale_of<float>(largest);
  double largest_scale_in_float64 = largest_scale_of<double>(largest);
};

enum class BlockFormat : std::uint8_t {
  mxfp8,
  mxfp8_e5m2,
  mxfp6,
  mxfp6_e3m2,
  mxfp4,
  mxint8,
  nvfp4,
  int2,
  int3,
  int4,
  int5,
  int6,
  int7,
  int8
};

// Not inline: a linker would merge those of different instruction sets.
constexpr std::array block_elements = {
    BlockElements{"mxfp8", 32, 3, -6, 448}, BlockElements{"mxfp8_e5m2", 32, 2, -14, 57344},
    BlockElements{"mxfp6", 32, 3, 0, 7.5},  BlockElements{"mxfp6_e3m2", 32, 2, -2, 28},
    BlockElements{"mxfp4", 32, 1, 0, 6},    BlockElements{"mxint8", 32, 6, 0, 127. / 64},
    BlockElements{"nvfp4", 16, 1, 0, 6},    BlockElements{"int2", 32, 0, 0, 1},
    BlockElements{"int3", 32, 1, 1, 3},     BlockElements{"int4", 32, 2, 2, 7},
    BlockElements{"int5", 32, 3, 3, 15},    BlockElements{"int6", 32, 4, 4, 31},
    BlockElements{"int7", 32, 5, 5, 63},    BlockElements{"int8", 32, 6, 6, 127}};

[[gnu::always_inline]] constexpr const BlockElements& elements_of(BlockFormat format) {
  return block_elements[static_cast<std::size_t>(format)];
}
constexpr std::string_view name_of(BlockFormat format) { return elements_of(format).name; }

inline void parse(std::string_view text, BlockFormat& format) {
  std::string names;
  for (std::size_t i = 0; i < block_elements.size(); ++i) {
    if (text == block_elements[i].name) {
      format = static_cast<BlockFormat>(i);
      return;
    }
    names.append(i == 0 ? "" : ", ").append(block_elements[i].name);
  }
  throw Error(Error::Kind::value, "format must be one of " + names + ", got " + quoted(text));
}

struct BlockQuant {
  static constexpr std::string_view name = "block_quant";
  static constexpr OnnxName onnx{"BlockQuant", "anybit"};
  static constexpr std::array inputs = {Input{"x", floating}, Input{"tensor_scale", real, true, 1}};

  struct Attributes {
    BlockFormat format = BlockFormat::mxfp8;
    std::int64_t axis = -1;
    std::int64_t block_size = 0;
    constexpr void visit(auto&& visitor) {
      visitor("format", format);
      visitor("axis", axis);
      visitor("block_size", block_size);
    }
  };

  static BlockShape blocks(const Attributes& attributes, std::span<const Tensor> tensors) {
    const BlockElements& elements = elements_of(attributes.format);
    if (attributes.block_size < 0)
      throw Error(Error::Kind::value, "block_size must be >= 1, or 0 for that of the format, got " +
                                          std::to_string(attributes.block_size));
    if (attributes.format != BlockFormat::nvfp4 && tensors.size() > 1 && tensors[1].given)
      throw Error(Error::Kind::value,
                  "tensor_scale needs the format nvfp4, got format " + quoted(elements.name));
    return {axis_of_blocks(attributes.axis, tensors[0].rank),
            attributes.block_size == 0 ? elements.block : attributes.block_size};
  }

  // Scales that are powers of two are multiplied by their reciprocals, which is exact.
  static constexpr int variants = 2;
  static constexpr int power_of_two_scale = 0;
  static int variant(const Attributes& attributes) {
    return attributes.format <= BlockFormat::mxint8 ? power_of_two_scale : 1;
  }

  static constexpr std::size_t varying_columns = 2;  // of `prepare`: factor and scale

  // The factor that x is multiplied or divided by, the scale, and the elements: their smallest
  // normal number, what makes a binade the number whose sum with an element rounds it, and the
  // largest one.
  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 5> prepare(const Attributes& attributes, T magnitude,
                                                         T tensor_scale) {
    const BlockElements& elements = elements_of(attributes.format);
    const T smallest = normal_power<T>(elements.smallest_exponent);
    const T largest = static_cast<T>(elements.largest);
    const bool finite = magnitude <= std::numeric_limits<T>::max();
    T factor, scale;
    if constexpr (variant == power_of_two_scale) {
      const Powers<T> powers = power_scale(magnitude, elements);
      factor = powers.reciprocal;
      scale = powers.scale;
    } else {
      scale = attributes.format == BlockFormat::nvfp4
                  ? product_scale(magnitude, tensor_scale, largest)
                  : integer_scale(magnitude, elements);
      factor = scale;
    }
    scale = finite ? scale : std::numeric_limits<T>::quiet_NaN();
    return {factor, scale, smallest, shifter<T>(elements.mantissa), largest};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T factor, T scale, T smallest, T shifter, T largest) {
    const T y = variant == power_of_two_scale ? x * factor : x / factor;
    return rounded(y, smallest, shifter, largest) * scale;
  }

 private:
  template <class T>
  struct Powers {
    T scale, reciprocal;
  };

  // 1.5 * 2^(digits of T - digits of the elements): a sum with that many times the binade of a
  // number has the spacing of the elements there, and is even where they are.
  template <class T>
  [[gnu::always_inline]] static T shifter(int mantissa) {
    return T(1.5) * normal_power<T>(Layout<T>::mantissa - mantissa);
  }

  template <class T>
  [[gnu::always_inline]] static T rounded(T y, T smallest, T shifter, T largest) {
    using Bits = typename Layout<T>::Bits;
    constexpr Bits exponent_bits = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
    T magnitude = std::abs(y);
    magnitude = magnitude > largest ? largest : magnitude;  // NaN passes
    const T normal = magnitude < smallest ? smallest : magnitude;
    const T binade = std::bit_cast<T>(std::bit_cast<Bits>(normal) & exponent_bits);
    const T shift = binade * shifter;
    const T q = (magnitude + shift) - shift;  // without a sign, so that y's may be added
    constexpr Bits sign = std::numeric_limits<Bits>::min();
    return std::bit_cast<T>(std::bit_cast<Bits>(q) | (std::bit_cast<Bits>(y) & sign));
  }

  // 2^clamp(floor(log2(magnitude)) - emax, -127, 127), and its reciprocal.
  template <class T>
  [[gnu::always_inline]] static Powers<T> power_scale(T magnitude, const BlockElements& elements) {
    using L = Layout<T>;
    using Bits = typename L::Bits;
    const int emax = floor_log2(elements.largest);
    // Exponents of normal numbers only: what is below them has the least scale.
    const int exponent = static_cast<int>(std::bit_cast<Bits>(magnitude) >> L::mantissa) - L::bias;
    const int scale = clamped(exponent - emax, -127, 127);
    return {exact_power<T>(scale), exact_power<T>(-scale)};
  }

  // 2^exponent for -127 .. 127, where 2^-127 is subnormal in float32.
  template <class T>
  [[gnu::always_inline]] static T exact_power(int exponent) {
    return exponent < -126 ? normal_power<T>(-126) * T(0.5) : normal_power<T>(exponent);
  }

  // float8_e4m3fn(magnitude / largest / g) * g, or a number at which the block is 0 instead of 0.
  template <class T>
  [[gnu::always_inline]] static T product_scale(T magnitude, T g, T largest) {
    const T s = rounded(magnitude / largest / g, normal_power<T>(-6), shifter<T>(3), T(448));
    const T scale = s * g;
    return scale == T(0) ? T(448) * g : scale;
  }

  // max(magnitude, largest * 2^-124) / largest, at most the largest scale with a finite product.
  template <class T>
  [[gnu::always_inline]] static T integer_scale(T magnitude, const BlockElements& elements) {
    const T largest = static_cast<T>(elements.largest);
    const T scale = at_least(magnitude, largest * normal_power<T>(-124)) / largest;
    const T most = sizeof(T) == 4 ? static_cast<T>(elements.largest_scale_in_float32)
                                  : static_cast<T>(elements.largest_scale_in_float64);
    return scale > most ? most : scale;
  }
};

}  // namespace anybit
