// SPDX-License-Identifier: Apache-2.0
// Table of prepared parameters, and preparation without a table.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "elementwise_plan.hpp"

namespace anybit {

namespace {

// Tables stay well inside the L2 cache.
constexpr std::int64_t table_bytes = 256 * 1024;

// Starting dominates in rows shorter than this. If rows have parameters of their own, the kernel
// starts them itself, and only very short rows are too short.
constexpr std::int64_t short_row = 64;
constexpr std::int64_t short_uniform_row = 16;

// Minimum number of reads for which a table with repetitions is worth writing.
constexpr std::int64_t worthwhile_reads = 4;

constexpr std::int64_t cache_line = 64;

template <class T>
void copy_entries(const char* from, std::int64_t source, std::int64_t step, char* to,
                  std::int64_t target, std::int64_t count) {
  const T* const first = reinterpret_cast<const T*>(from) + source;
  T* const result = reinterpret_cast<T*>(to) + target;
  if (step == 0) std::fill_n(result, count, *first);
  else std::copy_n(first, count, result);
}

}  // namespace

// Limit of parameter sets in a table.
std::int64_t ElementwisePlan::table_limit() const {
  return table_bytes / (preparation_.columns * element_size());
}

// Prepares all sets of parameters once, if they fit the table. A column of the table holds one
// prepared parameter, in the order of the loops in which parameters vary.
void ElementwisePlan::plan_table() {
  const std::int64_t limit = table_limit();
  std::int64_t sets = 1;
  for (int i = loops_ - 1; i >= 0 && sets <= limit; --i) {
    if (!loop_[i].varies()) continue;
    loop_[i].table = sets;
    sets *= loop_[i].size;
    innermost_ = std::max(innermost_, i);
  }
  period_ = loop_[loops_ - 1].varies() ? row_ : 0;
  if (sets > limit) return;  // prepared block by block later
  for (int i = 0; i < loops_; ++i) loop_[i].entry = loop_[i].table;
  compact_entries_ = entries_ = sets;
  table_ = allocate_table();
  fill_table();

  const std::int64_t compact_plane = plane_;
  const std::int64_t enough = period_ > 0 ? short_row : short_uniform_row;
  if (sets == 1 || row_ >= enough || !widen_row()) return;
  const std::unique_ptr<char[]> memory = std::move(memory_);
  repeat_table(std::exchange(table_, nullptr), compact_plane);
}

// Columns start on cache lines, offset by one line to avoid cache conflicts.
char* ElementwisePlan::allocate_table() {
  plane_ = entries_;
  if (entries_ == 1) return reinterpret_cast<char*>(single_set_.data());
  const std::int64_t line = cache_line / element_size();
  plane_ = (plane_ + line - 1) / line * line + line;
  const std::int64_t bytes = plane_ * preparation_.columns * element_size() + cache_line;
  memory_.reset(new char[static_cast<std::size_t>(bytes)]);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  return memory_.get() + (cache_line - address % cache_line) % cache_line;
}

// visit(at, length) receives entries of the compact table from at.entry on, along the innermost
// loop in which a parameter varies.
template <class Visit>
void ElementwisePlan::for_each_run_of_entries(Visit visit) const {
  const std::int64_t length = innermost_ < 0 ? 1 : loop_[innermost_].size;
  Cursor cursor;
  std::fill_n(cursor.index.begin(), std::max(0, innermost_), 0);
  do visit(cursor.at, length);
  while (next(cursor, innermost_, Through::varying_loops));
}

void ElementwisePlan::fill_table() {
  Scratch scratch;
  for_each_run_of_entries([&](const Position& at, std::int64_t length) {
    for (std::int64_t first = 0; first < length; first += block)
      prepare(at, innermost_, first, std::min(block, length - first),
              table_ + (at.entry + first) * element_size(), plane_, scratch);
  });
}

// Merges outer loops into a short row, so that it is long enough. Loops in which parameters vary
// enlarge the period, others repeat it. Returns false if the row is unchanged.
bool ElementwisePlan::widen_row() {
  const std::int64_t limit = std::min(table_limit(), size_ / worthwhile_reads);
  const Loop& inner = this->inner();
  std::int64_t outer_sets = 1;
  for (int i = 0; i < row_loop_; ++i)
    if (loop_[i].varies()) outer_sets *= loop_[i].size;
  std::int64_t period = row_;
  bool widened = false;
  while (row_ < short_row && row_loop_ > 0 && period == row_) {
    const Loop& outer = loop_[row_loop_ - 1];
    if (outer.x != inner.x * row_ || outer.out != inner.out * row_ ||
        outer.gradient != inner.gradient * row_)
      break;
    const std::int64_t needed = (short_row + period - 1) / period;
    const std::int64_t copies = outer.varies() ? outer.size : std::min(outer.size, needed);
    if (outer.varies()) outer_sets /= outer.size;
    if (copies * period * outer_sets > limit) break;
    period *= copies;
    row_ *= outer.size;
    --row_loop_;
    widened = true;
  }
  if (widened) period_ = period;
  return widened;
}

// Rewrites the table with one entry per element of a period.
void ElementwisePlan::repeat_table(const char* compact, std::int64_t compact_plane) {
  entries_ = period_;
  for (int i = row_loop_ - 1; i >= 0; --i) {
    loop_[i].table = loop_[i].varies() ? entries_ : 0;
    if (loop_[i].varies()) entries_ *= loop_[i].size;
  }
  table_ = allocate_table();
  const std::int64_t length = inner().size;
  const std::int64_t step = inner().entry;
  for (std::int64_t entry = 0; entry < entries_; entry += length) {
    const std::int64_t from = compact_entry(entry);
    for (int column = 0; column < preparation_.columns; ++column) {
      const std::int64_t source = column * compact_plane + from;
      const std::int64_t target = column * plane_ + entry;
      if (float64_) copy_entries<double>(compact, source, step, table_, target, length);
      else copy_entries<float>(compact, source, step, table_, target, length);
    }
  }
}

// Entry of the compact table that an entry of the repeated table starts with, at the start of the
// inner loop.
std::int64_t ElementwisePlan::compact_entry(std::int64_t entry) const {
  // The period may hold a part of the row's outermost loop, in which parameters do not vary.
  const std::int64_t part = period_ / (row_ / loop_[row_loop_].size);
  std::int64_t from = 0, rest = entry / inner().size;
  for (int i = loops_ - 2; i >= 0; --i) {
    if (i < row_loop_ && !loop_[i].varies()) continue;
    const std::int64_t size = i == row_loop_ ? part : loop_[i].size;
    from += rest % size * loop_[i].entry;
    rest /= size;
  }
  return from;
}

void ElementwisePlan::add_entries(const double* entries, int parameter, double* elements) const {
  std::vector<double> compact;
  // The same number of entries means the same entries in the same order.
  if (entries_ != compact_entries_) {
    compact.resize(static_cast<std::size_t>(compact_entries_), nothing);
    const std::int64_t length = inner().size;
    const std::int64_t step = inner().entry;
    for (std::int64_t entry = 0; entry < entries_; entry += length) {
      double* const target = compact.data() + compact_entry(entry);
      for (std::int64_t i = 0; i < length; ++i) target[i * step] += entries[entry + i];
    }
    entries = compact.data();
  }
  const std::int64_t step = innermost_ < 0 ? 0 : loop_[innermost_].targets[parameter];
  for_each_run_of_entries([&](const Position& at, std::int64_t length) {
    double* const target = elements + at.targets[parameter];
    for (std::int64_t i = 0; i < length; ++i) target[i * step] += entries[at.entry + i];
  });
}

// Gathers and prepares the parameters at the steps [first, first + count) of a loop (-1: none).
void ElementwisePlan::prepare(const Position& at, int along, std::int64_t first, std::int64_t count,
                              void* prepared, std::int64_t plane, Scratch& scratch) const {
  const void* gathered[max_parameters];
  for (int p = 0; p < parameter_count_; ++p) {
    const std::int64_t step = along < 0 ? 0 : loop_[along].parameters[p];
    gather(p, static_cast<const char*>(parameters_[p].data) + at.parameters[p] + first * step, step,
           count, scratch.gathered[p]);
    gathered[p] = scratch.gathered[p];
  }
  preparation_.prepare[variant_](attributes_, gathered, count, prepared, plane);
}

void ElementwisePlan::find_parameters(Rows& rows, const Position& at, std::int64_t first,
                                      Scratch& scratch) const {
  if (plane_ > 0) {
    const std::int64_t phase = period_ == 0 ? 0 : first % period_;
    rows.prepared = table_ + (at.table + phase) * element_size();
    rows.plane = plane_;
    if (period_ > 0) rows.length = std::min(rows.length, period_ - phase);
  } else if (period_ > 0) {
    rows.length = std::min(rows.length, block);
    rows.prepared = scratch.prepared;
    rows.plane = block;
    prepare(at, loops_ - 1, first, rows.length, scratch.prepared, block, scratch);
  } else if (rows.prepared == nullptr) {
    rows.prepared = scratch.prepared;
    rows.plane = block;
    prepare(at, -1, 0, 1, scratch.prepared, block, scratch);
  }
}

}  // namespace anybit
