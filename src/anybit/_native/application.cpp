// SPDX-License-Identifier: Apache-2.0
#include "application.hpp"

#include <algorithm>
#include <cstdlib>

#include "floating_point.hpp"

namespace anybit {

namespace {

// Elements converted or prepared at a time; all scratch arrays together stay below 32 KiB.
constexpr std::int64_t block = 256;

// Tables of prepared parameters stay well inside the second-level cache.
constexpr std::int64_t table_bytes = 256 * 1024;

// A row shorter than this spends its time on being started.
constexpr std::int64_t short_row = 512;

}  // namespace

struct Application::Position {
  std::int64_t x = 0;
  std::int64_t out = 0;
  std::int64_t table = 0;
  std::array<std::int64_t, max_parameters> parameters{};

  void advance(const Loop& loop, std::int64_t steps) {
    x += loop.x * steps;
    out += loop.out * steps;
    table += loop.table * steps;
    for (int i = 0; i < max_parameters; ++i) parameters[i] += loop.parameters[i] * steps;
  }
};

struct Application::Scratch {
  alignas(64) double x[block];
  alignas(64) double out[block];
  alignas(64) double gathered[max_parameters][block];
  alignas(64) double prepared[max_columns * block];
};

bool Application::Loop::varies() const {
  return std::any_of(parameters.begin(), parameters.end(), [](auto step) { return step != 0; });
}

// Whether x and out go on past the end of the inner loop as if it were longer.
bool Application::Loop::carries_on(const Loop& inner) const {
  return x == inner.x * inner.size && out == inner.out * inner.size;
}

bool Application::Loop::carries_on_in_all(const Loop& inner) const {
  bool all = carries_on(inner);
  for (int i = 0; i < max_parameters; ++i)
    all = all && parameters[i] == inner.parameters[i] * inner.size;
  return all;
}

Application::Application(const OperatorInfo& op, const void* attributes,
                         std::span<const Tensor> inputs, const Tensor& out)
    : op_(op), attributes_(attributes), set_(kernels()) {
  const Tensor& x = inputs[0];
  x_type_ = x.type;
  out_type_ = result_type(op, attributes, x.type);
  if (x.rank > max_rank)
    throw Error(Error::Kind::value, "arrays of more than " + std::to_string(max_rank) +
                                        " dimensions are not supported, got " +
                                        std::to_string(x.rank));
  const IeeeArithmetic ieee;
  std::array<Range, max_inputs> ranges;
  check_inputs(op, attributes, inputs, ranges.data());

  float64_ = x.type == ElementType::float64;
  variant_ = op.variant(attributes, float64_, ranges.data());
  kernel_ = set_.kernel(op.index, float64_);
  x_ = static_cast<const char*>(x.data);
  out_ = static_cast<char*>(out.data);
  parameter_count_ = static_cast<int>(op.inputs.size()) - 1;
  for (int i = 0; i < parameter_count_; ++i) {
    const bool given = static_cast<std::size_t>(i) + 1 < inputs.size() && inputs[i + 1].given;
    absent_[i] = op.inputs[i + 1].absent;
    parameters_[i] = given ? inputs[i + 1] : Tensor{&absent_[i], ElementType::float64};
  }
  lay_out_loops(x, out, {parameters_.data(), static_cast<std::size_t>(parameter_count_)});
  if (size_ == 0) return;
  merge_loops();
  const Loop& inner = loop_[loops_ - 1];
  const ElementType computed = float64_ ? ElementType::float64 : ElementType::float32;
  direct_ = x.type == computed && (out_type_ == computed || !is_floating(out_type_)) &&
            inner.x == size_of(x.type) && inner.out == size_of(out_type_);
  plan_table();
}

void Application::lay_out_loops(const Tensor& x, const Tensor& out,
                                std::span<const Tensor> parameters) {
  const int axis =
      op_.parameter_axis == nullptr ? 0 : op_.parameter_axis(attributes_, x.rank);
  // Strides of a contiguous array, built from the last dimension on.
  std::int64_t x_step = size_of(x.type), out_step = size_of(out_type_);
  std::array<std::int64_t, max_parameters> steps{};
  for (std::size_t p = 0; p < parameters.size(); ++p) steps[p] = size_of(parameters[p].type);
  for (int dim = x.rank - 1; dim >= 0; --dim) {
    Loop loop{x.shape[dim], x.strides ? x.strides[dim] : x_step,
              out.strides ? out.strides[dim] : out_step, 0, {}};
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const Tensor& parameter = parameters[p];
      const int own = op_.parameter_axis != nullptr ? (dim == axis ? 0 : -1)
                                                    : dim - x.rank + parameter.rank;
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
  std::stable_sort(loop_.begin(), loop_.begin() + loops_, [](const Loop& a, const Loop& b) {
    return std::abs(a.out) > std::abs(b.out);
  });
  int kept = 0;
  for (int i = 1; i < loops_; ++i) {
    if (loop_[kept].carries_on_in_all(loop_[i])) {
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

void Application::plan_table() {
  const std::int64_t limit = table_bytes / (kernel_.columns * element_size());
  std::int64_t sets = 1;
  for (int i = 0; i < loops_ && sets <= limit; ++i)
    if (loop_[i].varies()) sets *= loop_[i].size;
  period_ = loop_[loops_ - 1].varies() ? row_ : 0;
  if (sets > limit) return;  // prepared block by block instead
  if (sets > 1 && row_ < short_row) widen_row(limit);
  lay_out_table();
  Scratch scratch;
  fill_table(scratch);
}

// Joins outer loops to a short row, so that it is long enough to be worth starting: loops with
// parameters of their own enlarge the period, others repeat it.
void Application::widen_row(std::int64_t limit) {
  std::int64_t outer_sets = 1;
  for (int i = 0; i < row_loop_; ++i)
    if (loop_[i].varies()) outer_sets *= loop_[i].size;
  std::int64_t period = row_;
  while (row_ < short_row && row_loop_ > 0) {
    const Loop& outer = loop_[row_loop_ - 1];
    const Loop& inner = loop_[loops_ - 1];
    if (outer.x != inner.x * row_ || outer.out != inner.out * row_) return;
    const std::int64_t wanted = (short_row + period - 1) / period;
    const std::int64_t copies = outer.varies() ? outer.size : std::min(outer.size, wanted);
    if (outer.varies()) outer_sets /= outer.size;
    if (copies * period * outer_sets > limit) return;
    period *= copies;
    period_ = period;
    row_ *= outer.size;
    --row_loop_;
    if (period != row_) return;
  }
}

void Application::lay_out_table() {
  plane_ = period_ > 0 ? period_ : 1;
  for (int i = row_loop_ - 1; i >= 0; --i) {
    loop_[i].table = loop_[i].varies() ? plane_ : 0;
    if (loop_[i].varies()) plane_ *= loop_[i].size;
  }
  const std::int64_t values = plane_ * kernel_.columns;
  if (values <= static_cast<std::int64_t>(small_table_.size())) {
    table_ = reinterpret_cast<char*>(small_table_.data());
  } else {
    large_table_.reset(new double[static_cast<std::size_t>(values * element_size() / 8 + 1)]);
    table_ = reinterpret_cast<char*>(large_table_.get());
  }
}

void Application::fill_table(Scratch& scratch) {
  // The table's innermost dimension: the row, or the last outer loop whose parameters vary.
  int first = row_loop_, last = loops_;
  std::int64_t length = period_ > 0 ? period_ : 1;
  if (period_ == 0) {
    for (first = row_loop_; first > 0 && !loop_[first - 1].varies();) --first;
    last = first;
    if (first > 0) length = loop_[--first].size;
  }
  std::array<std::int64_t, max_rank> index{};
  Position at;
  for (std::int64_t done = 0; done < plane_; done += length) {
    for (std::int64_t begin = 0; begin < length; begin += block) {
      const std::int64_t count = std::min(block, length - begin);
      prepare(at.parameters.data(), first, last, begin, count,
              table_ + (at.table + begin) * element_size(), plane_, scratch);
    }
    for (int i = first - 1; i >= 0; --i) {
      if (!loop_[i].varies()) continue;
      at.advance(loop_[i], 1);
      if (++index[i] < loop_[i].size) break;
      at.advance(loop_[i], -loop_[i].size);
      index[i] = 0;
    }
  }
}

// Gathers the parameters at the positions [first, first + count) of the loops [first_loop,
// last_loop), taken together as one, and prepares them.
void Application::prepare(const std::int64_t* offsets, int first_loop, int last_loop,
                          std::int64_t first, std::int64_t count, void* prepared,
                          std::int64_t plane, Scratch& scratch) const {
  const void* gathered[max_parameters];
  for (int p = 0; p < parameter_count_; ++p) {
    const Tensor& parameter = parameters_[p];
    const bool wide = float64_ || op_.inputs[p + 1].domain.integer;
    const Load load = set_.load[static_cast<int>(parameter.type)][wide ? 1 : 0];
    gathered[p] = scratch.gathered[p];
    char* to = reinterpret_cast<char*>(scratch.gathered[p]);
    const bool looped = first_loop < last_loop;
    const std::int64_t length = looped ? loop_[last_loop - 1].size : 1;
    const std::int64_t step = looped ? loop_[last_loop - 1].parameters[p] : 0;
    for (std::int64_t done = 0; done < count;) {
      std::int64_t rest = (first + done) / length;
      const std::int64_t begin = (first + done) % length;
      std::int64_t offset = offsets[p] + begin * step;
      for (int i = last_loop - 2; i >= first_loop; rest /= loop_[i].size, --i)
        offset += rest % loop_[i].size * loop_[i].parameters[p];
      const std::int64_t stretch = std::min(length - begin, count - done);
      load(static_cast<const char*>(parameter.data) + offset, step, stretch, to);
      to += stretch * (wide ? 8 : 4);
      done += stretch;
    }
  }
  kernel_.prepare[variant_](attributes_, gathered, count, prepared, plane);
}

void Application::run(std::int64_t first, std::int64_t last) const noexcept {
  if (first >= last) return;
  const IeeeArithmetic ieee;
  Scratch scratch;
  std::array<std::int64_t, max_rank> index;
  Position at;
  std::int64_t rest = first / row_;
  for (int i = row_loop_ - 1; i >= 0; rest /= loop_[i].size, --i) {
    index[i] = rest % loop_[i].size;
    at.advance(loop_[i], index[i]);
  }
  for (std::int64_t begin = first % row_; first < last; begin = 0) {
    const std::int64_t end = std::min(row_, begin + last - first);
    run_row(at, begin, end, scratch);
    first += end - begin;
    for (int i = row_loop_ - 1; i >= 0; --i) {
      at.advance(loop_[i], 1);
      if (++index[i] < loop_[i].size) break;
      at.advance(loop_[i], -loop_[i].size);
      index[i] = 0;
    }
  }
}

void Application::run_row(const Position& at, std::int64_t first, std::int64_t last,
                          Scratch& scratch) const {
  const bool uniform = period_ == 0;
  if (plane_ == 0 && uniform)
    prepare(at.parameters.data(), row_loop_, row_loop_, 0, 1, scratch.prepared, block, scratch);
  while (first < last) {
    std::int64_t count = last - first;
    if (!direct_) count = std::min(count, block);
    const char* prepared = reinterpret_cast<const char*>(scratch.prepared);
    std::int64_t plane = block;
    if (plane_ > 0) {
      const std::int64_t phase = uniform ? 0 : first % period_;
      if (!uniform) count = std::min(count, period_ - phase);
      prepared = table_ + (at.table + phase) * element_size();
      plane = plane_;
    } else if (!uniform) {
      count = std::min(count, block);
      prepare(at.parameters.data(), row_loop_, loops_, first, count, scratch.prepared, block,
              scratch);
    }
    run_piece(at, first, count, prepared, plane, uniform, scratch);
    first += count;
  }
}

void Application::run_piece(const Position& at, std::int64_t first, std::int64_t count,
                            const void* prepared, std::int64_t plane, bool uniform,
                            Scratch& scratch) const {
  const Loop& inner = loop_[loops_ - 1];
  const char* x = x_ + at.x + first * inner.x;
  char* out = out_ + at.out + first * inner.out;
  const Apply apply = (uniform ? kernel_.uniform : kernel_.varying)[variant_];
  if (direct_) return apply(x, out, count, prepared, plane);
  const int wide = float64_ ? 1 : 0;
  set_.load[static_cast<int>(x_type_)][wide](x, inner.x, count, scratch.x);
  apply(scratch.x, scratch.out, count, prepared, plane);
  set_.store[static_cast<int>(out_type_)][wide](scratch.out, count, out, inner.out);
}

}  // namespace anybit
