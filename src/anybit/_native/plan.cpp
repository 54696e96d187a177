// SPDX-License-Identifier: Apache-2.0
// Laying out an application: which loops run over the arrays, and where each step finds its
// prepared parameters.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "application.hpp"

namespace anybit {

namespace {

// Tables of prepared parameters stay well inside the second-level cache.
constexpr std::int64_t table_bytes = 256 * 1024;

// Rows shorter than this spend their time on being started. Where each row has parameters of its
// own the kernel starts the rows itself, and only very short ones are too short.
constexpr std::int64_t short_row = 64;
constexpr std::int64_t short_uniform_row = 16;

// A table with repetitions must be read this often to be worth writing.
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

bool Application::Loop::varies() const {
  return std::any_of(parameters.begin(), parameters.end(), [](auto step) { return step != 0; });
}

// Whether all operands go on past the end of the inner loop as if it were longer.
bool Application::Loop::carries_on(const Loop& inner) const {
  bool all = x == inner.x * inner.size && out == inner.out * inner.size;
  for (std::size_t i = 0; i < max_parameters; ++i)
    all = all && parameters[i] == inner.parameters[i] * inner.size;
  return all;
}

void Application::lay_out_loops(const Tensor& x, const Tensor& out,
                                std::span<const Tensor> parameters) {
  const int axis = op_.parameter_axis == nullptr ? 0 : op_.parameter_axis(attributes_, x.rank);
  // Strides of a contiguous array, built from the last dimension on.
  std::int64_t x_step = size_of(x.type), out_step = size_of(out_type_);
  std::array<std::int64_t, max_parameters> steps{};
  for (std::size_t p = 0; p < parameters.size(); ++p) steps[p] = size_of(parameters[p].type);
  for (int dim = x.rank - 1; dim >= 0; --dim) {
    Loop loop{x.shape[dim],
              x.strides ? x.strides[dim] : x_step,
              out.strides ? out.strides[dim] : out_step,
              0,
              {}};
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Tensor& parameter = parameters[p];
      const int own =
          op_.parameter_axis != nullptr ? (dim == axis ? 0 : -1) : dim - x.rank + parameter.rank;
      if (own < 0 || own >= parameter.rank || parameter.shape[own] == 1) continue;
      loop.parameters[p] = parameter.strides ? parameter.strides[own] : steps[p];
      steps[p] *= parameter.shape[own];
    }
    x_step *= loop.size;
    out_step *= loop.size;
    size_ *= loop.size;
    if (loop.size != 1) loop_[loops_++] = loop;
  }
  std::reverse(loop_.begin(), loop_.begin() + loops_);
  if (loops_ == 0) loop_[loops_++] = Loop{1, size_of(x.type), size_of(out_type_), 0, {}};
}

void Application::merge_loops() {
  // The loop in which out moves least goes innermost, whatever the memory order of the arrays.
  std::stable_sort(loop_.begin(), loop_.begin() + loops_,
                   [](const Loop& a, const Loop& b) { return std::abs(a.out) > std::abs(b.out); });
  int kept = 0;
  for (int i = 1; i < loops_; ++i) {
    if (loop_[kept].carries_on(loop_[i])) {
      const std::int64_t outer = loop_[kept].size;
      loop_[kept] = loop_[i];
      loop_[kept].size *= outer;
    } else {
      loop_[++kept] = loop_[i];
    }
  }
  loops_ = kept + 1;
  row_loop_ = kept;
  row_ = loop_[kept].size;
}

// The sets of parameters that a table may hold.
std::int64_t Application::table_limit() const {
  return table_bytes / (kernel_.columns * element_size());
}

// Prepares every set of parameters once, if they are few enough to keep. Each column of the table
// holds one prepared parameter, in the order of the loops in which any parameter varies.
void Application::plan_table() {
  const std::int64_t limit = table_limit();
  int innermost = -1;
  std::int64_t sets = 1;
  for (int i = loops_ - 1; i >= 0 && sets <= limit; --i) {
    if (!loop_[i].varies()) continue;
    loop_[i].table = sets;
    sets *= loop_[i].size;
    innermost = std::max(innermost, i);
  }
  period_ = loop_[loops_ - 1].varies() ? row_ : 0;
  if (sets > limit) return;  // prepared block by block instead
  plane_ = sets;
  table_ = allocate_table();
  fill_table(innermost);

  std::array<std::int64_t, max_rank> compact_steps;
  for (int i = 0; i < loops_; ++i) compact_steps[i] = loop_[i].table;
  const std::int64_t compact_plane = plane_;
  const std::int64_t enough = period_ > 0 ? short_row : short_uniform_row;
  if (sets == 1 || row_ >= enough || !widen_row()) return;
  const std::unique_ptr<char[]> memory = std::move(memory_);
  repeat_table(std::exchange(table_, nullptr), compact_plane, compact_steps);
}

// Columns start on cache lines, one line apart from where they would collide in the cache.
char* Application::allocate_table() {
  if (plane_ == 1) return reinterpret_cast<char*>(single_set_.data());
  const std::int64_t line = cache_line / element_size();
  plane_ = (plane_ + line - 1) / line * line + line;
  const std::int64_t bytes = plane_ * kernel_.columns * element_size() + cache_line;
  memory_.reset(new char[static_cast<std::size_t>(bytes)]);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
  return memory_.get() + (cache_line - address % cache_line) % cache_line;
}

void Application::fill_table(int innermost) {
  Scratch scratch;
  const std::int64_t length = innermost < 0 ? 1 : loop_[innermost].size;
  std::array<std::int64_t, max_rank> index{};
  Position at;
  for (int i = 0; i >= 0;) {
    for (std::int64_t first = 0; first < length; first += block)
      prepare(at, innermost, first, std::min(block, length - first),
              table_ + (at.table + first) * element_size(), plane_, scratch);
    for (i = innermost - 1; i >= 0; --i) {
      if (!loop_[i].varies()) continue;
      at.advance(loop_[i], 1);
      if (++index[i] < loop_[i].size) break;
      at.advance(loop_[i], -loop_[i].size);
      index[i] = 0;
    }
  }
}

// Joins outer loops to a short row, so that it is long enough to be worth starting: loops with
// parameters of their own enlarge the period, others repeat it. False if the row stays as it is.
bool Application::widen_row() {
  const std::int64_t limit = std::min(table_limit(), size_ / worthwhile_reads);
  const Loop& inner = loop_[loops_ - 1];
  std::int64_t outer_sets = 1;
  for (int i = 0; i < row_loop_; ++i)
    if (loop_[i].varies()) outer_sets *= loop_[i].size;
  std::int64_t period = row_;
  bool widened = false;
  while (row_ < short_row && row_loop_ > 0 && period == row_) {
    const Loop& outer = loop_[row_loop_ - 1];
    if (outer.x != inner.x * row_ || outer.out != inner.out * row_) break;
    const std::int64_t wanted = (short_row + period - 1) / period;
    const std::int64_t copies = outer.varies() ? outer.size : std::min(outer.size, wanted);
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

// Writes the table anew with one entry for every element of a period.
void Application::repeat_table(const char* compact, std::int64_t compact_plane,
                               const std::array<std::int64_t, max_rank>& compact_steps) {
  std::int64_t entries = period_;
  for (int i = row_loop_ - 1; i >= 0; --i) {
    loop_[i].table = loop_[i].varies() ? entries : 0;
    if (loop_[i].varies()) entries *= loop_[i].size;
  }
  plane_ = entries;
  table_ = allocate_table();
  const std::int64_t length = loop_[loops_ - 1].size;
  const std::int64_t step = compact_steps[loops_ - 1];
  // Of the row's outermost loop the period may hold a part; its parameters do not vary then.
  const std::int64_t part = period_ / (row_ / loop_[row_loop_].size);
  for (std::int64_t entry = 0; entry < entries; entry += length) {
    std::int64_t from = 0, rest = entry / length;
    for (int i = loops_ - 2; i >= 0; --i) {
      if (i < row_loop_ && !loop_[i].varies()) continue;
      const std::int64_t size = i == row_loop_ ? part : loop_[i].size;
      from += rest % size * compact_steps[i];
      rest /= size;
    }
    for (int column = 0; column < kernel_.columns; ++column) {
      const std::int64_t source = column * compact_plane + from;
      const std::int64_t target = column * plane_ + entry;
      if (float64_) copy_entries<double>(compact, source, step, table_, target, length);
      else copy_entries<float>(compact, source, step, table_, target, length);
    }
  }
}

}  // namespace anybit
