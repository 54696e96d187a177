// SPDX-License-Identifier: Apache-2.0
// Tensors of other libraries through DLPack's C functions, without copies, and without compiling
// against those libraries. Structures are those of DLPack 1.3; later members are not needed.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "interpreter.hpp"

namespace anybit::dlpack {

struct View {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t rank;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  const std::int64_t* shape;
  const std::int64_t* strides;  // in elements
  std::uint64_t byte_offset;
};
static_assert(offsetof(View, code) == 20 && offsetof(View, shape) == 24 && sizeof(View) == 48);

// Gets the exchange API of a library. The object must be one of its tensors.
struct Exchange {
  std::uint32_t major;
  std::uint32_t minor;
  const Exchange* previous;
  void (*skipped[3])();
  int (*view_of)(void* object, View* view);
};
static_assert(offsetof(Exchange, previous) == 8 && offsetof(Exchange, view_of) == 40);

// Functions in a capsule `__dlpack_c_exchange_api__`, of the version declared here.
inline const Exchange& exchange_of(nb::handle capsule) {
  const void* const pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (pointer == nullptr) throw PythonError();
  const auto* exchange = static_cast<const Exchange*>(pointer);
  while (exchange != nullptr && exchange->major != 1) exchange = exchange->previous;
  if (exchange == nullptr || exchange->view_of == nullptr)
    throw Error(Error::Kind::value, "exchange must be of DLPack 1");
  return *exchange;
}

// Element type; nothing for unsupported types.
inline std::optional<ElementType> element_type(const View& view) {
  enum : std::uint8_t { integer, natural, floating, bfloat = 4, boolean = 6 };
  if (view.lanes != 1) return std::nullopt;
  switch (view.code << 8 | view.bits) {
    case floating << 8 | 32:
      return ElementType::float32;
    case floating << 8 | 64:
      return ElementType::float64;
    case floating << 8 | 16:
      return ElementType::float16;
    case bfloat << 8 | 16:
      return ElementType::bfloat16;
    case integer << 8 | 8:
      return ElementType::int8;
    case integer << 8 | 16:
      return ElementType::int16;
    case integer << 8 | 32:
      return ElementType::int32;
    case integer << 8 | 64:
      return ElementType::int64;
    case natural << 8 | 8:
      return ElementType::uint8;
    case natural << 8 | 16:
      return ElementType::uint16;
    case natural << 8 | 32:
      return ElementType::uint32;
    case natural << 8 | 64:
      return ElementType::uint64;
    case boolean << 8 | 8:
      return ElementType::boolean;
    default:
      return std::nullopt;
  }
}

// Memory of a tensor, with strides in bytes; valid until the tensor is freed or resized.
class Borrowed {
 public:
  // Raises TypeError unless it is a dense tensor of real numbers on the CPU.
  Tensor borrow(nb::handle object, const Exchange& exchange, std::string_view name) {
    View view;
    const bool has_view = in_python([&] { return exchange.view_of(object.ptr(), &view); }) == 0;
    if (!has_view) PyErr_Clear();
    const auto type = has_view ? element_type(view) : std::nullopt;
    constexpr std::int32_t cpu = 1;
    if (!type || view.device_type != cpu || view.rank > max_rank)
      throw Error(Error::Kind::type,
                  std::string(name) + " must be a dense tensor of real numbers on the CPU");
    for (int axis = 0; axis < view.rank; ++axis)
      strides_[axis] = view.strides[axis] * size_of(*type);
    return {static_cast<std::byte*>(view.data) + view.byte_offset,
            *type,
            view.rank,
            view.shape,
            strides_.data(),
            true,
            false};
  }

 private:
  std::array<std::int64_t, max_rank> strides_;
};

}  // namespace anybit::dlpack
