// SPDX-License-Identifier: Apache-2.0
#include "block_application.hpp"

#include <algorithm>
#include <cstdlib>

#include "_native/isa/ieee_arithmetic.hpp"
#include "loop_order.hpp"

namespace anybit {

namespace {

constexpr std::int64_t divide_up(std::int64_t size, std::int64_t part) {
  return size / part + (size % part != 0);
}

}  // namespace

void BlockApplication::Steps::advance(const Steps& steps, std::int64_t times) {
  x += steps.x * times;
  out += steps.out * times;
  for (std::size_t i = 0; i < max_parameters; ++i) parameters[i] += steps.parameters[i] * times;
}

// Whether all operands continue past the inner loop with the same strides, so that loops can merge.
bool BlockApplication::Loop::can_merge(const Loop& inner) const {
  bool all = x == inner.x * inner.size && out == inner.out * inner.size;
  for (std::size_t i = 0; i < max_parameters; ++i)
    all = all && parameters[i] == inner.parameters[i] * inner.size;
  return all;
}

BlockApplication::BlockApplication(const OperatorInfo& op, const void* attributes,
                                   std::span<const Tensor> inputs, const Tensor& out)
    : CheckedCall(op, attributes, inputs) {
  if (size() == 0) return;
  const IeeeArithmetic ieee;
  const Tensor& x = inputs[0];
  kernel_ = set_.kernel(op.index, float64_);
  x_ = static_cast<const char*>(x.data);
  out_ = static_cast<char*>(out.data);
  const BlockShape blocks = op.blocks(attributes, inputs);
  block_ = std::min(blocks.size, x.shape[blocks.axis]);
  lay_out(x, out);
  std::swap(axis_, loop_[blocks.axis]);
  std::copy(loop_.begin() + blocks.axis + 1, loop_.begin() + loops_, loop_.begin() + blocks.axis);
  --loops_;
  merge_loops();

  const bool by_row = columns_.size == 0;
  direct_ = by_row ? is_direct(axis_.x, axis_.out) : is_direct(columns_.x, columns_.out);
  units_ = divide_up(axis_.size, block_);
  if (!by_row) units_ *= divide_up(columns_.size, piece);
  for (int i = 0; i < loops_; ++i) units_ *= loop_[i].size;
}

// One loop for each axis of x.
void BlockApplication::lay_out(const Tensor& x, const Tensor& out) {
  Loop next;  // strides of a contiguous array, built from the last axis on
  next.x = size_of(x.type);
  next.out = size_of(out_type_);
  for (int p = 0; p < parameter_count_; ++p) next.parameters[p] = size_of(parameters_[p].type);
  const auto step = [](const Tensor& tensor, int dim, std::int64_t contiguous) {
    return tensor.strides ? tensor.strides[dim] : contiguous;
  };
  loops_ = x.rank;
  for (int dim = x.rank - 1; dim >= 0; --dim) {
    Loop& loop = loop_[dim];
    loop = {};
    loop.size = x.shape[dim];
    loop.x = step(x, dim, next.x);
    loop.out = step(out, dim, next.out);
    for (int p = 0; p < parameter_count_; ++p) {
      const Tensor& parameter = parameters_[p];
      const int own = dim - x.rank + parameter.rank;
      if (own < 0 || parameter.shape[own] == 1) continue;
      loop.parameters[p] = step(parameter, own, next.parameters[p]);
      next.parameters[p] *= loop.size;
    }
    next.x *= loop.size;
    next.out *= loop.size;
    size_ *= loop.size;
  }
}

// Merges the other axes, and selects the innermost loop: along the blocks, or across them.
void BlockApplication::merge_loops() {
  const auto begin = loop_.begin();
  loops_ = static_cast<int>(
      std::remove_if(begin, begin + loops_, [](const Loop& loop) { return loop.size == 1; }) -
      begin);
  loops_ = sort_and_merge(std::span(loop_.data(), static_cast<std::size_t>(loops_)));
  columns_.size = 0;
  if (loops_ == 0) return;
  const Loop& inner = loop_[loops_ - 1];
  if (axis_.size == 1 || std::abs(inner.out) < std::abs(axis_.out)) {
    columns_ = inner;
    --loops_;
  } else if (axis_.size % block_ == 0 && inner.can_merge(axis_)) {
    axis_.size *= inner.size;
    --loops_;
  }
}

void BlockApplication::run(const Workers& workers) const {
  if (size() == 0) return;
  const std::int64_t grain = std::max(std::int64_t{1}, elements_per_thread / (size() / units_));
  workers.split(units_, grain,
                [this](std::int64_t first, std::int64_t last) noexcept { run_units(first, last); });
}

BlockApplication::Steps BlockApplication::find_position(std::int64_t outer) const {
  Steps at;
  for (int i = loops_ - 1; i >= 0; outer /= loop_[i].size, --i)
    at.advance(loop_[i], outer % loop_[i].size);
  return at;
}

void BlockApplication::run_units(std::int64_t first, std::int64_t last) const noexcept {
  const IeeeArithmetic ieee;
  Scratch scratch;
  const std::int64_t blocks = divide_up(axis_.size, block_);
  const std::int64_t pieces = divide_up(columns_.size, piece);
  while (first < last) {
    if (columns_.size == 0) {
      const std::int64_t begin = first % blocks;
      const std::int64_t count = std::min(last - first, blocks - begin);
      run_row(find_position(first / blocks), begin, count, scratch);
      first += count;
    } else {
      const std::int64_t begin = first % pieces * piece;
      const std::int64_t at_block = first / pieces % blocks * block_;
      Steps at = find_position(first / pieces / blocks);
      at.advance(axis_, at_block);
      at.advance(columns_, begin);
      run_columns(at, std::min(block_, axis_.size - at_block),
                  std::min(piece, columns_.size - begin), scratch);
      ++first;
    }
  }
}

// The parameters of `count` elements from a position on, as `prepare` takes them.
void BlockApplication::gather_all(const Steps& at, const Steps& steps, std::int64_t count,
                                  const void** gathered, Scratch& scratch) const {
  gathered[0] = scratch.magnitudes;
  for (int p = 0; p < parameter_count_; ++p) {
    gather(p, static_cast<const char*>(parameters_[p].data) + at.parameters[p], steps.parameters[p],
           count, scratch.gathered[p]);
    gathered[p + 1] = scratch.gathered[p];
  }
}

// Elements of a block are neighbours.
void BlockApplication::run_row(Steps at, std::int64_t first, std::int64_t blocks,
                               Scratch& scratch) const {
  const void* gathered[max_inputs];
  gather_all(at, axis_, 1, gathered, scratch);
  std::int64_t rest = std::min(blocks * block_, axis_.size - first * block_);
  at.advance(axis_, first * block_);
  if (!direct_ && block_ > piece) return run_long_blocks(at, rest, gathered, scratch);
  const std::int64_t most = direct_ ? rest : piece / block_ * block_;
  for (std::int64_t count = 0; rest > 0; rest -= count) {
    count = std::min(rest, most);
    BlockRow row{attributes_, x_ + at.x, out_ + at.out, count, block_, gathered};
    if (!direct_) {
      load(row.x, axis_.x, count, scratch);
      row.x = scratch.x;
      row.out = scratch.out;
    }
    kernel_.blocks[variant_](row);
    if (!direct_) store(out_ + at.out, axis_.out, count, scratch);
    at.advance(axis_, count);
  }
}

// The same through scratch arrays for blocks that do not fit them.
void BlockApplication::run_long_blocks(Steps at, std::int64_t length, const void** gathered,
                                       Scratch& scratch) const {
  const int wide = float64_ ? 1 : 0;
  for (std::int64_t left = length; left > 0; left -= block_) {
    const std::int64_t size = std::min(left, block_);
    scratch.magnitudes[0] = 0;
    for (std::int64_t i = 0; i < size; i += piece) {
      const std::int64_t count = std::min(piece, size - i);
      load(x_ + at.x + i * axis_.x, axis_.x, count, scratch);
      set_.reduce_all[wide](scratch.x, count, scratch.magnitudes);
    }
    kernel_.preparation.prepare[variant_](attributes_, gathered, 1, scratch.prepared, piece);
    for (std::int64_t i = 0; i < size; i += piece) {
      const std::int64_t count = std::min(piece, size - i);
      load(x_ + at.x + i * axis_.x, axis_.x, count, scratch);
      kernel_.uniform[variant_]({scratch.x, scratch.out, count, scratch.prepared, piece});
      store(out_ + at.out + i * axis_.out, axis_.out, count, scratch);
    }
    at.advance(axis_, size);
  }
}

// Neighbours belong to different blocks: `rows` elements of each of `columns` blocks.
void BlockApplication::run_columns(Steps at, std::int64_t rows, std::int64_t columns,
                                   Scratch& scratch) const {
  const int wide = float64_ ? 1 : 0;
  const char* const x = x_ + at.x;
  char* const out = out_ + at.out;
  std::fill_n(scratch.magnitudes, columns, 0.);
  if (direct_) set_.reduce_rows[wide](x, columns, rows, axis_.x, scratch.magnitudes);
  for (std::int64_t i = 0; i < rows && !direct_; ++i) {
    load(x + i * axis_.x, columns_.x, columns, scratch);
    set_.reduce_rows[wide](scratch.x, columns, 1, 0, scratch.magnitudes);
  }
  const void* gathered[max_inputs];
  gather_all(at, columns_, columns, gathered, scratch);
  kernel_.preparation.prepare[variant_](attributes_, gathered, columns, scratch.prepared, piece);
  if (direct_) {
    kernel_.varying[variant_]({x, out, columns, scratch.prepared, piece, rows, axis_.x, axis_.out});
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    load(x + i * axis_.x, columns_.x, columns, scratch);
    kernel_.varying[variant_]({scratch.x, scratch.out, columns, scratch.prepared, piece});
    store(out + i * axis_.out, columns_.out, columns, scratch);
  }
}

void BlockApplication::load(const void* x, std::int64_t step, std::int64_t count,
                            Scratch& scratch) const {
  set_.load[static_cast<int>(x_type_)][float64_ ? 1 : 0](x, step, count, scratch.x);
}

void BlockApplication::store(void* out, std::int64_t step, std::int64_t count,
                             const Scratch& scratch) const {
  set_.store[static_cast<int>(out_type_)][float64_ ? 1 : 0](scratch.out, count, out, step);
}

}  // namespace anybit
