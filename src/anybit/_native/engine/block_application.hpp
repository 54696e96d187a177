// SPDX-License-Identifier: Apache-2.0
// An operator that reduces blocks, on arrays: checked and planned once, then run.
#pragma once

#include "_native/threads/workers.hpp"
#include "checked_call.hpp"

namespace anybit {

class BlockApplication : public CheckedCall {
 public:
  // Throws Error for invalid inputs. `inputs[0]` is x; `out` has x's shape and the result type, and
  // is x itself or does not overlap any input. Arrays and attributes must outlive the object.
  BlockApplication(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
                   const Tensor& out);

  // Computes all elements.
  void run(const Workers& workers) const;

 private:
  // Elements converted or prepared at a time: all scratch arrays together stay below 72 KiB.
  static constexpr std::int64_t piece = 512;
  struct Scratch {
    alignas(64) double x[piece];
    alignas(64) double out[piece];
    alignas(64) double magnitudes[piece];
    alignas(64) double gathered[max_parameters][piece];
    alignas(64) double prepared[max_columns * piece];
  };

  // Strides in bytes, also of a position in all operands.
  struct Steps {
    std::int64_t x = 0, out = 0;
    std::array<std::int64_t, max_parameters> parameters{};
    void advance(const Steps& steps, std::int64_t times);
  };
  struct Loop : Steps {
    std::int64_t size = 1;
    bool can_merge(const Loop& inner) const;
  };

  void lay_out(const Tensor& x, const Tensor& out);
  void merge_loops();
  Steps find_position(std::int64_t outer) const;
  void run_units(std::int64_t first, std::int64_t last) const noexcept;
  void run_row(Steps at, std::int64_t first, std::int64_t blocks, Scratch& scratch) const;
  void run_long_blocks(Steps at, std::int64_t length, const void** gathered,
                       Scratch& scratch) const;
  void run_columns(Steps at, std::int64_t rows, std::int64_t columns, Scratch& scratch) const;
  void gather_all(const Steps& at, const Steps& steps, std::int64_t count, const void** gathered,
                  Scratch& scratch) const;
  void load(const void* x, std::int64_t step, std::int64_t count, Scratch& scratch) const;
  void store(void* out, std::int64_t step, std::int64_t count, const Scratch& scratch) const;

  Kernel kernel_;
  const char* x_;
  char* out_;
  std::int64_t block_;  // elements, at most the length of the axis
  Loop axis_;           // of the blocks
  // Adjacent blocks, computed together; size 0 if the elements of a block are contiguous.
  Loop columns_;
  bool direct_;  // kernels read x and write out themselves, without conversion
  int loops_ = 0;
  std::array<Loop, max_rank> loop_;  // over all other axes, outermost first
  std::int64_t units_ = 0;           // independent parts of the work
};

}  // namespace anybit
