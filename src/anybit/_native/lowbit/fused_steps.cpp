// SPDX-License-Identifier: Apache-2.0
#include "fused_steps.hpp"

#include <numeric>

#include "product_kernels.hpp"

namespace anybit::lowbit {

namespace {

bool are_equal(const FloatNumber& a, const FloatNumber& b) {
  return a.kind == b.kind && a.index == b.index;
}

bool have_equal_sizes(const FloatTensor& a, const FloatTensor& b) {
  return a.height == b.height && a.width == b.width && a.channels == b.channels;
}

// Whether a product can read the second operand pixel by pixel.
bool is_read_by_pixels(const Program& program, const Elementwise& at) {
  const FloatNumber number = float_source(program, at.second);
  const FloatTensor sizes = sizes_of(program, float_target(program, at.target)),
                    other = sizes_of(program, number);
  if (other.height != sizes.height || other.width != sizes.width) return false;
  if (number.kind == FloatNumber::Kind::inner || other.channels == 1) return true;
  const bool is_input = number.kind == FloatNumber::Kind::input;
  const Port& port = (is_input ? program.inputs : program.outputs)[number.index];
  return port.channels_first == 0 || other.height * other.width == 1;
}

// Whether steps keep a number before they use the kept one, which is 0 at first.
bool keeps_first(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.kind() == Operation::keep) return true;
    if (step.kind() == Operation::add_kept || step.kind() == Operation::multiply_kept) return false;
  }
  return true;
}

// Elementwise instructions after a product.
class Chain {
 public:
  Chain(const Program& program, const Product& product)
      : program_(program), last_(float_target(program, product.target)) {}

  // The floats after the last instruction.
  const FloatNumber& last() const { return last_; }

  // Adds an instruction. Returns whether a product can compute it.
  bool add(const Instruction& instruction) {
    const auto* const at = std::get_if<Elementwise>(&instruction);
    if (at == nullptr || !are_equal(float_source(program_, at->first), last_)) return false;
    const FloatNumber target = float_target(program_, at->target);
    if (!have_equal_sizes(sizes_of(program_, last_), sizes_of(program_, target)) ||
        !keeps_first(at->steps))
      return false;
    if (at->has_second() && (are_equal(float_source(program_, at->second), last_) ||
                             !is_read_by_pixels(program_, *at) || ++arrays_ > most_step_arrays))
      return false;
    last_ = target;
    return true;
  }

 private:
  const Program& program_;
  FloatNumber last_;
  int arrays_ = 0;
};

}  // namespace

std::vector<std::size_t> find_products_of_steps(const Program& program,
                                                const std::vector<std::size_t>& last_uses) {
  const std::size_t count = program.instructions.size();
  std::vector<std::size_t> products(count);
  std::iota(products.begin(), products.end(), std::size_t{0});
  for (std::size_t first = 0; first < count; ++first) {
    const auto* const product = std::get_if<Product>(&program.instructions[first]);
    if (product == nullptr || !std::holds_alternative<Arithmetic>(product->epilogue)) continue;
    Chain chain(program, *product);
    for (std::size_t next = first + 1; next < count; ++next) {
      const FloatNumber& last = chain.last();
      if (last.kind != FloatNumber::Kind::inner || last_uses[last.index] != next ||
          !chain.add(program.instructions[next]))
        break;
      products[next] = first;
    }
  }
  return products;
}

}  // namespace anybit::lowbit
