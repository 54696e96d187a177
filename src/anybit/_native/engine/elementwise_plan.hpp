// SPDX-License-Identifier: Apache-2.0
// Loops over the arrays of a call, and the location of their prepared parameters.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "checked_call.hpp"

namespace anybit {

class ElementwisePlan : public CheckedCall {
 protected:
  // Operands of x's shape; upstream gradients only in the backward pass.
  struct Arrays {
    const Tensor& x;
    const Tensor& out;
    const Tensor* gradient = nullptr;
  };

  using CheckedCall::CheckedCall;
  ~ElementwisePlan() = default;

  // `summed` has a bit per parameter whose elements stay distinct even if they are equal.
  void lay_out(const Arrays& arrays, const Preparation& preparation, std::uint32_t summed = 0);

  // Strides of the operands. Table entries, entries of the compact table (`entry`) and targets
  // (elements of the summed parameters in C order) count in elements, all others in bytes.
  struct Position {
    std::int64_t x, out, gradient, table, entry;
    std::array<std::int64_t, max_parameters> parameters, targets;
    void advance(const Position& steps, std::int64_t times);
  };
  // A loop over all operands, and their strides.
  struct Loop : Position {
    std::int64_t size;
    bool varies() const;
    bool can_merge(const Loop& inner) const;
  };
  // Elements converted or prepared at a time: all scratch arrays together stay below 40 KiB.
  static constexpr std::int64_t block = 256;
  struct Scratch {
    alignas(64) double x[block];
    alignas(64) double out[block];
    alignas(64) double gathered[max_parameters][block];
    alignas(64) double prepared[max_columns * block];
  };

  // A position in the outer loops, and the index of each loop.
  struct Cursor {
    Position at{};
    std::array<std::int64_t, max_rank> index;  // of the outer loops only
  };
  enum class Through : bool { all_loops, varying_loops };
  // Advances the innermost of the loops [0, count), with carry into outer loops. Returns false
  // after the last step.
  bool next(Cursor& cursor, int count, Through through, std::int64_t steps = 1) const;

  // Visits the elements [first, last), counted in the plan's order. part(at, begin, end) receives
  // elements of the row at a position. If `by_rows`, whole(at, count) receives whole rows along the
  // loop around them.
  template <class Part, class Whole>
  void walk(std::int64_t first, std::int64_t last, bool by_rows, Part part, Whole whole) const;

  // Whether a row starts at the same table entry as the previous row, or at the next entry.
  bool has_entries_by_row() const {
    return plane_ > 0 && row_loop_ > 0 && (period_ == 0 || period_ == row_);
  }

  // Sets the parameters of `rows` for the elements from `first` on of the row at a position, and
  // limits its length to their number. Without a table, it prepares at most `block` elements; a set
  // for the whole row is reused if `rows` has it already.
  void find_parameters(Rows& rows, const Position& at, std::int64_t first, Scratch& scratch) const;

  // Sums start at -0.0, which preserves sums of negative zeros.
  static constexpr double nothing = -0.0;

  // Adds the sums of the table's entries to the elements of a parameter.
  void add_entries(const double* entries, int parameter, double* elements) const;

  const Loop& inner() const { return loop_[loops_ - 1]; }

  int loops_ = 0;
  std::array<Loop, max_rank> loop_;  // outermost first
  int row_loop_ = 0;                 // loops from this one on form a row
  std::int64_t row_ = 1;             // elements in a row
  std::int64_t period_ = 0;          // period of a row's parameters; 0: one set for the whole row
  std::int64_t entries_ = 0;         // sets of parameters in the table; 0: too many for a table
  std::int64_t plane_ = 0;           // elements from one column of the table to the next

 private:
  void lay_out_loops(const Arrays& arrays, std::uint32_t summed);
  void merge_loops();
  void plan_table();
  void fill_table();
  template <class Visit>
  void for_each_run_of_entries(Visit visit) const;
  bool widen_row();
  void repeat_table(const char* compact, std::int64_t compact_plane);
  std::int64_t compact_entry(std::int64_t entry) const;
  char* allocate_table();
  void prepare(const Position& at, int along, std::int64_t first, std::int64_t count,
               void* prepared, std::int64_t plane, Scratch& scratch) const;
  std::int64_t table_limit() const;

  Preparation preparation_{};
  int innermost_ = -1;                // innermost loop in which a parameter varies
  std::int64_t compact_entries_ = 0;  // entries before rows were widened
  // A single set fits into the object itself; tables are allocated.
  alignas(64) std::array<double, max_columns> single_set_;
  std::unique_ptr<char[]> memory_;
  char* table_ = nullptr;
};

template <class Part, class Whole>
void ElementwisePlan::walk(std::int64_t first, std::int64_t last, bool by_rows, Part part,
                           Whole whole) const {
  Cursor cursor;
  std::int64_t rest = first / row_;
  for (int i = row_loop_ - 1; i >= 0; rest /= loop_[i].size, --i) {
    cursor.index[i] = rest % loop_[i].size;
    cursor.at.advance(loop_[i], cursor.index[i]);
  }
  for (std::int64_t begin = first % row_; first < last; begin = 0) {
    std::int64_t rows = 1;
    if (by_rows && begin == 0 && last - first >= row_) {
      rows =
          std::min((last - first) / row_, loop_[row_loop_ - 1].size - cursor.index[row_loop_ - 1]);
      whole(cursor.at, rows);
      first += rows * row_;
    } else {
      const std::int64_t end = std::min(row_, begin + last - first);
      part(cursor.at, begin, end);
      first += end - begin;
    }
    next(cursor, row_loop_, Through::all_loops, rows);
  }
}

}  // namespace anybit
