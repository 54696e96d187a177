// SPDX-License-Identifier: Apache-2.0
// C++ wrappers of XLA's call frames: operands are tensors, attributes are looked up by name,
// failures throw, and no exception leaves to the host.
#pragma once

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "abi.hpp"
#include "ops/types.hpp"

namespace anybit::xla {

[[noreturn]] inline void fail(const std::string& message) {
  throw Error(Error::Kind::value, message);
}

// Runs `work`, and turns exceptions into an error that the host destroys.
template <class Work>
HostError* guarded(const Api& api, const Work& work) noexcept {
  const auto report = [&api](ErrorCode code, const char* message) {
    CreateErrorArguments arguments{{sizeof(CreateErrorArguments), nullptr}, message, code};
    return api.create_error(&arguments);
  };
  try {
    work();
    return nullptr;
  } catch (const Error& error) {
    return report(ErrorCode::invalid_argument, error.what());
  } catch (const std::exception& error) {
    return report(ErrorCode::internal, error.what());
  } catch (...) {
    return report(ErrorCode::internal, "anybit failed for an unknown reason");
  }
}

// Operands and attributes are embedded in the frame: if one grows, later members move.
inline void check_layout(const CallFrame& frame) {
  if (frame.header.struct_size < offsetof(CallFrame, future) ||
      frame.arguments.header.struct_size != sizeof(Operands) ||
      frame.results.header.struct_size != sizeof(Operands) ||
      frame.attributes.header.struct_size != sizeof(Attributes))
    fail(
        "this version of XLA lays out its calls in a way that anybit does not know; update anybit");
}

constexpr std::optional<ElementType> element_type_of(DataType type) {
  switch (type) {
    case DataType::boolean:
      return ElementType::boolean;
    case DataType::int8:
      return ElementType::int8;
    case DataType::int16:
      return ElementType::int16;
    case DataType::int32:
      return ElementType::int32;
    case DataType::int64:
      return ElementType::int64;
    case DataType::uint8:
      return ElementType::uint8;
    case DataType::uint16:
      return ElementType::uint16;
    case DataType::uint32:
      return ElementType::uint32;
    case DataType::uint64:
      return ElementType::uint64;
    case DataType::float16:
      return ElementType::float16;
    case DataType::float32:
      return ElementType::float32;
    case DataType::float64:
      return ElementType::float64;
    case DataType::bfloat16:
      return ElementType::bfloat16;
    default:
      return std::nullopt;
  }
}

// An argument or a result. It borrows the host's memory and sizes.
inline Tensor tensor_at(const Operands& operands, std::int64_t place) {
  if (operands.types[place] != buffer_operand) fail("operands must be arrays");
  const auto& buffer = *static_cast<const Buffer*>(operands.values[place]);
  const std::optional<ElementType> type = element_type_of(buffer.type);
  if (!type)
    fail("operand " + std::to_string(place) + " has XLA's element type " +
         std::to_string(static_cast<int>(buffer.type)) +
         ", which is not a type of real numbers here");
  if (buffer.rank > max_rank)
    fail("arrays of more than " + std::to_string(max_rank) + " dimensions are not supported, got " +
         std::to_string(buffer.rank));
  return {buffer.data, *type, static_cast<int>(buffer.rank), buffer.sizes, nullptr, true, false};
}

// Index of an attribute; -1 if there is none of that name.
inline std::int64_t find(const Attributes& attributes, std::string_view name) {
  for (std::int64_t i = 0; i < attributes.size; ++i)
    if (std::string_view(attributes.names[i]->characters, attributes.names[i]->length) == name)
      return i;
  return -1;
}

inline void read_attribute(const Attributes& attributes, std::int64_t place, std::int64_t& number) {
  const auto& scalar = *static_cast<const Scalar*>(attributes.values[place]);
  const bool is_scalar = attributes.types[place] == AttributeType::scalar;
  if (is_scalar && scalar.type == DataType::int64) {
    std::memcpy(&number, scalar.value, sizeof number);
  } else if (is_scalar && scalar.type == DataType::int32) {
    std::int32_t half = 0;
    std::memcpy(&half, scalar.value, sizeof half);
    number = half;
  } else {
    fail("an attribute must be an integer");
  }
}

inline void read_attribute(const Attributes& attributes, std::int64_t place, bool& flag) {
  const auto& scalar = *static_cast<const Scalar*>(attributes.values[place]);
  if (attributes.types[place] != AttributeType::scalar || scalar.type != DataType::boolean)
    fail("an attribute must be a bool");
  unsigned char byte = 0;
  std::memcpy(&byte, scalar.value, sizeof byte);
  flag = byte != 0;
}

template <class Choice>
void read_attribute(const Attributes& attributes, std::int64_t place, Choice& choice) {
  if (attributes.types[place] != AttributeType::string) fail("an attribute must be a string");
  const auto& text = *static_cast<const Text*>(attributes.values[place]);
  parse(std::string_view(text.characters, text.length), choice);
}

}  // namespace anybit::xla
