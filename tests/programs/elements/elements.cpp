// SPDX-License-Identifier: Apache-2.0
// Every operator on all halves and on random floats, with random attributes and parameters, at
// every level that this processor supports: elements [CASES]
//
// Prints a checksum of the results per case, which is the same on all processors: compare the
// outputs of two machines. Fails if two levels of one processor differ.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "../levels.hpp"
#include "_native/engine/application.hpp"
#include "_native/isa/levels.hpp"
#include "_native/threads/workers.hpp"
#include "ops/operators.hpp"

namespace {

using namespace anybit;

constexpr std::int64_t elements = 1 << 16;
using Random = std::mt19937_64;

std::uint64_t below(Random& random, std::uint64_t end) { return random() % end; }

// Near 1, often a power of two, sometimes negative or zero.
double number(Random& random) {
  const double value = static_cast<double>(16 + below(random, 2) * below(random, 16)) / 16;
  const std::uint64_t kind = below(random, 16);
  const int exponent = static_cast<int>(below(random, 8)) - 6;
  return kind == 0 ? 0 : std::ldexp(kind == 1 ? -value : value, exponent);
}

double value_for(const Domain& domain, Random& random) {
  if (domain.integer) return std::max(domain.minimum, -4.0) + static_cast<double>(below(random, 9));
  return std::max(domain.minimum, number(random));
}

void choose(Random& random, auto& attribute) {
  using Attribute = std::remove_reference_t<decltype(attribute)>;
  if constexpr (std::is_same_v<Attribute, bool>) attribute = below(random, 2) != 0;
  else if constexpr (std::is_same_v<Attribute, RoundingMode>)
    attribute = static_cast<RoundingMode>(below(random, rounding_modes));
}

// Storage for elements of any type.
using Memory = std::vector<std::uint64_t>;

// All halves; for wider types, numbers with random bits, and numbers on and between steps.
void fill(Memory& memory, ElementType type, Random& random) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double near = std::ldexp(static_cast<double>(below(random, 512)) - 256, -5);
    const bool any = below(random, 2) != 0;
    if (size_of(type) == 2) {
      reinterpret_cast<std::uint16_t*>(memory.data())[at] = static_cast<std::uint16_t>(i);
    } else if (type == ElementType::float32) {
      const auto bits = static_cast<std::uint32_t>(random());
      reinterpret_cast<float*>(memory.data())[at] =
          any ? std::bit_cast<float>(bits) : static_cast<float>(near);
    } else {
      memory[at] = any ? random() : std::bit_cast<std::uint64_t>(near);
    }
  }
}

template <class Bits>
bool is_nan(Bits bits, Bits infinity) {
  return (bits & static_cast<Bits>(~Bits{0} >> 1)) > infinity;
}

// The bits of NaN may depend on the processor.
template <class Bits>
std::uint64_t checksum(const Memory& memory, Bits infinity) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (std::int64_t i = 0; i < elements; ++i) {
    Bits bits;
    std::memcpy(&bits, reinterpret_cast<const Bits*>(memory.data()) + i, sizeof bits);
    if (infinity != 0 && is_nan(bits, infinity)) bits = static_cast<Bits>(infinity + 1);
    sum = (sum ^ bits) * 0x100000001b3u;
  }
  return sum;
}

std::uint64_t checksum(const Memory& memory, ElementType type) {
  switch (type) {
    case ElementType::float32:
      return checksum<std::uint32_t>(memory, 0x7f800000u);
    case ElementType::float64:
      return checksum<std::uint64_t>(memory, 0x7ff0000000000000u);
    case ElementType::float16:
      return checksum<std::uint16_t>(memory, 0x7c00u);
    case ElementType::bfloat16:
      return checksum<std::uint16_t>(memory, 0x7f80u);
    default:
      return checksum<std::uint8_t>(memory, 0);
  }
}

struct Case {
  const OperatorInfo& op;
  const void* attributes;
  ElementType type;
  bool by_element;  // parameters have x's shape
};

// One per operator input; x is the first.
struct Arrays {
  std::array<Memory, max_inputs> memory;
  std::array<Tensor, max_inputs> tensors;
};

ElementType type_of(const Domain& domain) {
  if (domain.accepts(ElementType::float64)) return ElementType::float64;
  return domain.accepts(ElementType::float32) ? ElementType::float32 : ElementType::int32;
}

void make(const Case& at, Random& random, Arrays& arrays) {
  static constexpr std::int64_t shape[] = {elements};
  for (std::size_t i = 0; i < at.op.inputs.size(); ++i) {
    const Input& input = at.op.inputs[i];
    Memory& memory = arrays.memory[i];
    memory.assign(elements, 0);
    const ElementType type = i == 0 ? at.type : type_of(input.domain);
    const bool whole = i == 0 || at.by_element;
    if (i == 0) fill(memory, type, random);
    for (std::int64_t k = 0; i > 0 && k < (whole ? elements : 1); ++k) {
      const double value = value_for(input.domain, random);
      if (type == ElementType::float64)
        memory[static_cast<std::size_t>(k)] = std::bit_cast<std::uint64_t>(value);
      else if (type == ElementType::float32)
        reinterpret_cast<float*>(memory.data())[k] = static_cast<float>(value);
      else reinterpret_cast<std::int32_t*>(memory.data())[k] = static_cast<std::int32_t>(value);
    }
    arrays.tensors[i] = {memory.data(), type, whole ? 1 : 0, &shape[0], nullptr, true, false};
  }
}

// Checksum at the level in use, or the operator's error message.
std::string result(const Case& at, const Arrays& arrays) {
  Memory memory(elements);
  try {
    const ElementType type = result_type(at.op, at.attributes, at.type);
    const Tensor out{memory.data(), type, 1, arrays.tensors[0].shape, nullptr, true, false};
    Application(at.op, at.attributes, {arrays.tensors.data(), at.op.inputs.size()}, out)
        .run(Workers());
    char text[20];
    std::snprintf(text, sizeof text, "%016llx",
                  static_cast<unsigned long long>(checksum(memory, type)));
    return text;
  } catch (const Error& error) {
    return error.what();
  }
}

bool holds(const Case& at, int number, Random& random) {
  Arrays arrays;
  make(at, random, arrays);
  std::string first;
  for (const std::string_view name : all_levels) {
    try {
      select_level(name);
    } catch (const Error&) {
      continue;
    }
    const std::string checksum = result(at, arrays);
    if (first.empty()) first = checksum;
    if (checksum == first) continue;
    std::printf("%s: %s at %s\n", first.c_str(), checksum.c_str(), std::string(name).c_str());
    return false;
  }
  std::printf("%s %d %s %s: %s\n", std::string(at.op.name).c_str(), number,
              std::string(name_of(at.type)).c_str(), at.by_element ? "by element" : "one",
              first.c_str());
  return true;
}

template <class Op>
bool all_hold(int cases) {
  const OperatorInfo& op = operator_info<Op, Operators>();
  bool all = true;
  for (int number = 0; number < cases; ++number) {
    Random random(static_cast<std::uint64_t>(number));
    typename Op::Attributes attributes;
    attributes.visit(
        [&](std::string_view, auto& attribute, auto...) { choose(random, attribute); });
    const bool by_element = op.parameter_axis == nullptr && number % 4 == 3;
    for (const ElementType type :
         {ElementType::float32, ElementType::float64, ElementType::float16, ElementType::bfloat16})
      if (op.inputs[0].domain.accepts(type))
        all = holds({op, &attributes, type, by_element}, number, random) && all;
  }
  return all;
}

}  // namespace

int main(int count, char** words) {
  const int cases = count > 1 ? std::atoi(words[1]) : 16;
  bool all = true;
  Operators::for_each([&]<class Op>() { all = all_hold<Op>(cases) && all; });
  return all ? 0 : 1;
}
