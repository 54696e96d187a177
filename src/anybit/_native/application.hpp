// SPDX-License-Identifier: Apache-2.0
// An operator applied to arrays: checked and planned once, then run over any part of the elements.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels.hpp"
#include "operator_info.hpp"
#include "types.hpp"

namespace anybit {

class Application {
 public:
  // Throws Error if the inputs are not what the operator takes. `inputs[0]` is x; `out` has x's
  // shape and the result type, and is x itself or does not overlap any input. All that is pointed
  // to must outlive the application.
  Application(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
              const Tensor& out);
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  // The number of elements.
  std::int64_t size() const { return size_; }

  // Computes the elements [first, last), counted in an order of the plan's own. Disjoint ranges
  // may run in any threads at once.
  void run(std::int64_t first, std::int64_t last) const noexcept;

 private:
  static constexpr int max_parameters = max_inputs - 1;

  // One loop over all operands: how far each of them moves from one step to the next. The table
  // of prepared parameters counts in elements, everything else in bytes.
  struct Loop {
    std::int64_t size, x, out, table;
    std::array<std::int64_t, max_parameters> parameters;
    bool varies() const;
    bool carries_on(const Loop& inner) const;
  };
  struct Position {
    std::int64_t x = 0;
    std::int64_t out = 0;
    std::int64_t table = 0;
    std::array<std::int64_t, max_parameters> parameters{};
    void advance(const Loop& loop, std::int64_t steps);
  };
  // Elements converted or prepared at a time: all scratch arrays together stay below 40 KiB.
  static constexpr std::int64_t block = 256;
  struct Scratch {
    alignas(64) double x[block];
    alignas(64) double out[block];
    alignas(64) double gathered[max_parameters][block];
    alignas(64) double prepared[max_columns * block];
  };

  void lay_out_loops(const Tensor& x, const Tensor& out, std::span<const Tensor> parameters);
  void merge_loops();
  void plan_table();
  void fill_table(int innermost);
  bool widen_row();
  void repeat_table(const char* compact, std::int64_t compact_plane,
                    const std::array<std::int64_t, max_rank>& compact_steps);
  char* allocate_table();
  void prepare(const Position& at, int along, std::int64_t first, std::int64_t count,
               void* prepared, std::int64_t plane, Scratch& scratch) const;
  void run_rows(const Position& at, std::int64_t rows) const;
  void run_row(const Position& at, std::int64_t first, std::int64_t last, Scratch& scratch) const;
  void run_converted(Rows rows, const Loop& inner, Scratch& scratch) const;
  std::int64_t table_limit() const;
  std::int64_t element_size() const { return float64_ ? 8 : 4; }

  const OperatorInfo& op_;
  const void* attributes_;
  const KernelSet& set_;
  Kernel kernel_;
  int variant_;
  bool float64_;
  bool direct_;  // the kernel reads x and writes out itself, without conversion
  ElementType x_type_;
  ElementType out_type_;
  int parameter_count_;
  std::array<Tensor, max_parameters> parameters_;
  std::array<double, max_parameters> absent_;  // stands in for inputs that are not given
  const char* x_;
  char* out_;
  std::int64_t size_ = 1;
  int loops_ = 0;
  std::array<Loop, max_rank> loop_;  // outermost first
  int row_loop_ = 0;                 // from this loop on, all loops together are one row
  std::int64_t row_ = 1;             // elements in a row
  std::int64_t period_ = 0;  // after which a row's parameters repeat; 0: one set for the whole row
  std::int64_t plane_ = 0;   // elements in each column of the table; 0: too many for a table
  // A single set fits into the object itself; tables are allocated.
  alignas(64) std::array<double, max_columns> single_set_;
  std::unique_ptr<char[]> memory_;
  char* table_ = nullptr;
};

}  // namespace anybit
