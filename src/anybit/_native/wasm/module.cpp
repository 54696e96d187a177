// SPDX-License-Identifier: Apache-2.0
// Operators as a WebAssembly module. Independent of the set of operators. Exceptions do not unwind
// here: errors go to the host, which throws and discards the instance.
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "_native/engine/any_application.hpp"
#include "ops/operators.hpp"

#define ANYBIT_EXPORT(name) extern "C" [[clang::export_name(#name)]]

// Throws in the host. `type` is 1 for Error::Kind::type.
extern "C" [[noreturn, clang::import_module("host"), clang::import_name("refuse")]] void refuse(
    bool type, const char* text, std::size_t length);

extern "C" void* __cxa_allocate_exception(std::size_t size) { return std::malloc(size); }

extern "C" [[noreturn]] void __cxa_throw(void* thrown, std::type_info* type, void (*)(void*)) {
  if (*type == typeid(anybit::Error)) {
    const auto& error = *static_cast<const anybit::Error*>(thrown);
    const std::string_view text = error.what();
    refuse(error.kind == anybit::Error::Kind::type, text.data(), text.size());
  }
  std::abort();  // an internal error, or out of memory
}

namespace anybit {
namespace {

// Tensor description that the host writes into memory.
static_assert(sizeof(Tensor) == 24 && offsetof(Tensor, type) == 4 && offsetof(Tensor, rank) == 8 &&
              offsetof(Tensor, shape) == 12 && offsetof(Tensor, given) == 20 &&
              offsetof(Tensor, literal) == 21);

// Attributes are zero-terminated strings, alternating names and values.
void read_attribute(std::string_view text, std::string_view name, bool& flag) {
  if (text != "0" && text != "1")
    throw Error(Error::Kind::type, std::string(name) + " must be 0 or 1, got " + quoted(text));
  flag = text == "1";
}

void read_attribute(std::string_view text, std::string_view name, std::int64_t& number) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size())
    throw Error(Error::Kind::value,
                std::string(name) + " must be an integer of 64 bits, got " + quoted(text));
}

template <class Choice>
void read_attribute(std::string_view text, std::string_view, Choice& choice) {
  parse(text, choice);
}

std::string_view next_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

template <class Op>
typename Op::Attributes attributes_of(std::string_view text) {
  typename Op::Attributes attributes;
  while (!text.empty()) {
    const std::string_view key = next_word(text);
    const std::string_view value = next_word(text);
    bool matched = false;
    attributes.visit([&](std::string_view name, auto& attribute, auto... /*onnx_names*/) {
      if (name != key) return;
      read_attribute(value, name, attribute);
      matched = true;
    });
    if (!matched)
      throw Error(Error::Kind::type, std::string(Op::name) + "() has no argument " + quoted(key));
  }
  return attributes;
}

template <class Op>
ElementType call(std::span<const Tensor> inputs, std::string_view text, void* out) {
  const auto attributes = attributes_of<Op>(text);
  const OperatorInfo& op = operator_info<Op, Operators>();
  Tensor result = inputs[0];
  result.data = out;
  result.type = result_type(op, &attributes, result.type);
  AnyApplication(op, &attributes, inputs, result).run(Workers());
  return result.type;
}

}  // namespace

// Name of an operator or of an element type; null after the last one.
ANYBIT_EXPORT(operator_name) const char* operator_name(int index) {
  const char* name = nullptr;
  int at = 0;
  Operators::for_each([&]<class Op>() {
    if (at++ == index) name = Op::name.data();
  });
  return name;
}

ANYBIT_EXPORT(type_name) const char* type_name(int index) {
  return index < element_type_count ? name_of(static_cast<ElementType>(index)).data() : nullptr;
}

// Allocates memory for arguments, until it is released.
ANYBIT_EXPORT(allocate) void* allocate(std::size_t bytes) { return std::malloc(bytes); }
ANYBIT_EXPORT(release) void release(void* memory) { std::free(memory); }

// Converts numbers through float64.
ANYBIT_EXPORT(convert)
void convert(int from, const void* numbers, int to, void* out, std::size_t count) {
  const auto& kernels = kernels_of<KernelSet>(selected_level());
  std::vector<double> wide(count);
  const auto length = static_cast<std::int64_t>(count);
  kernels.load[static_cast<std::size_t>(from)][1](numbers, size_of(static_cast<ElementType>(from)),
                                                  length, wide.data());
  kernels.store[static_cast<std::size_t>(to)][1](wide.data(), length, out,
                                                 size_of(static_cast<ElementType>(to)));
}

// Applies the operator to its inputs, and returns the element type of the result, which has at most
// 8 bytes.
ANYBIT_EXPORT(apply)
int apply(int index, const Tensor* inputs, const char* attributes, std::size_t length, void* out) {
  int at = 0, type = -1;
  Operators::for_each([&]<class Op>() {
    if (at++ == index)
      type = static_cast<int>(
          call<Op>(std::span(inputs, Op::inputs.size()), {attributes, length}, out));
  });
  return type;
}

}  // namespace anybit
