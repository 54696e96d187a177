// SPDX-License-Identifier: Apache-2.0
// The vocabulary shared by the operators, the kernels and the adapters.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace anybit {

enum class ElementType : std::uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
};
inline constexpr int element_type_count = 13;

constexpr std::int64_t size_of(ElementType type) {
  constexpr std::int8_t sizes[element_type_count] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return sizes[static_cast<int>(type)];
}

constexpr std::string_view name_of(ElementType type) {
  constexpr std::string_view names[element_type_count] = {
      "float32", "float64", "float16", "bfloat16", "int8",   "int16", "int32",
      "int64",   "uint8",   "uint16",  "uint32",   "uint64", "bool"};
  return names[static_cast<int>(type)];
}

constexpr bool is_floating(ElementType type) { return type <= ElementType::bfloat16; }

// Whether an operator may give results of that type: what takes another one must store it too.
constexpr bool is_result(ElementType type) {
  return is_floating(type) || type == ElementType::int8 || type == ElementType::uint8;
}

// NumPy's own limit; shapes beyond it are refused before anything is computed.
inline constexpr int max_rank = 64;

// A borrowed, strided array. Strides are in bytes; without strides it is contiguous (C order).
// An input that was not given has no data and no elements to read.
struct Tensor {
  void* data = nullptr;
  ElementType type = ElementType::float32;
  int rank = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;
  bool given = false;
  bool literal = false;  // a bare number or list of the host language: its type carries no intent
};

// Which values an input may hold.
struct Domain {
  std::string_view description;
  bool integer = false;
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  std::uint16_t types = 0;  // a set of ElementType bits; empty: every type

  constexpr bool unlimited() const { return !integer && minimum < 0; }
  constexpr bool accepts(ElementType type) const {
    return types == 0 || (types >> static_cast<int>(type) & 1) != 0;
  }
};

constexpr std::uint16_t types_of(auto... types) {
  return static_cast<std::uint16_t>(((1u << static_cast<int>(types)) | ...));
}

inline constexpr Domain floating{.description = "float32, float64, float16 or bfloat16",
                                 .types = types_of(ElementType::float32, ElementType::float64,
                                                   ElementType::float16, ElementType::bfloat16)};
inline constexpr Domain real{"a real number"};
inline constexpr Domain non_negative{"a number >= 0", false, 0};
inline constexpr Domain integer{"an integer", true};
inline constexpr Domain positive_integer{"an integer >= 1", true, 1};
inline constexpr Domain non_negative_integer{"an integer >= 0", true, 0};
inline constexpr Domain float32_only{.description = "float32",
                                     .types = types_of(ElementType::float32)};
inline constexpr Domain byte{.description = "int8 or uint8",
                             .integer = true,
                             .minimum = -128,
                             .maximum = 255,
                             .types = types_of(ElementType::int8, ElementType::uint8)};
inline constexpr Domain small_integer{
    .description = "int8, uint8 or int32",
    .integer = true,
    .minimum = std::numeric_limits<std::int32_t>::min(),
    .maximum = std::numeric_limits<std::int32_t>::max(),
    .types = types_of(ElementType::int8, ElementType::uint8, ElementType::int32)};

// One input of an operator. `absent` stands in where an optional input is not given.
struct Input {
  std::string_view name;
  Domain domain = real;
  bool optional = false;
  double absent = 0;
};

// What an operator is called in ONNX files. Versions of one operator share a name.
struct OnnxName {
  std::string_view name;
  std::string_view domain;
  std::string_view alias = {};  // another name found in files
};

// The lowest and the highest value that an integer input holds in one call.
struct Range {
  double lowest = 0;
  double highest = 0;
};

// A fault of the caller: the message shows the value and the remedy.
class Error : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t { value, type };
  Error(Kind error_kind, const std::string& message)
      : std::runtime_error(message), kind(error_kind) {}
  Kind kind;
};

// Untrusted text as an error message shows it: in quotes, with unprintable bytes escaped.
inline std::string quoted(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string result = "'";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte < 0x7f) result += character;
    else ((result += "\\x") += digits[byte / 16]) += digits[byte % 16];
  }
  return result + "'";
}

template <class... Ts>
struct TypeList {
  static constexpr int size = sizeof...(Ts);
  static void for_each(auto&& visit) { (visit.template operator()<Ts>(), ...); }
};

}  // namespace anybit
