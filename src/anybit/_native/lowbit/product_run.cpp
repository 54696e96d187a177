// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "product.hpp"
#include "product_state.hpp"

namespace anybit::lowbit {

namespace {

using State = PackedProduct::State;

// The pixels of a block, and what of them depends on where they lie. Between the runs lie windows
// that are not pixels.
struct Pixels {
  struct Run {
    int first, count;
  };
  int count = 0, run_count = 0;
  Run runs[most_block_pixels];
  const std::byte* windows[most_block_pixels];
  const std::int32_t* constants[most_block_pixels];
  std::byte* targets[most_block_pixels];
  float* floats[most_block_pixels];
  std::int32_t addends[most_block_pixels];
};

// Walks over the target's pixels of a part.
class PartWalk {
 public:
  PartWalk(const State& at, const Part& part, const std::byte* source, std::byte* target,
           float* floats)
      : at_(at),
        part_(part),
        source_(source),
        target_(target),
        floats_(floats),
        row_(part.first_row),
        line_(part.first_line),
        block_(at.block_pixels) {
    done_ = part.first_row >= part.last_row || part.first_line >= part.last_line;
    if (done_) row_ = part.last_row;
    if (!done_) begin_line();
  }

  bool next(Pixels& pixels) {
    pixels.count = pixels.run_count = 0;
    if (at_.target.width == 1 && at_.target.height == 1) return next_rows(pixels);
    while (!done_ && pixels.count < block_) {
      const auto here = static_cast<int>(
          std::min<std::int64_t>(block_ - pixels.count, at_.target.width - column_));
      add_run(pixels, here);
      for (int i = 0; i < here; ++i, ++column_, window_ += window_step_, ++pixels.count) {
        pixels.windows[pixels.count] = window_;
        pixels.constants[pixels.count] =
            constants_ + at_.column_class[static_cast<std::size_t>(column_)] * at_.padded;
        if (target_ != nullptr)
          pixels.targets[pixels.count] = line_target_ + column_ * at_.to.pixel;
        else pixels.floats[pixels.count] = line_floats_ + column_ * at_.floats.pixel;
      }
      if (column_ == at_.target.width) {
        const bool more = at_.gap > 0 && line_ + 1 < part_.last_line;
        const int gap = more && at_.gap < block_ - pixels.count ? at_.gap : 0;
        for (int i = 0; i < gap; ++i, window_ += window_step_)
          pixels.windows[pixels.count++] = window_;
        end_line();
      }
    }
    return pixels.count > 0;
  }

 private:
  static void add_run(Pixels& pixels, int count) {
    if (pixels.run_count > 0) {
      Pixels::Run& last = pixels.runs[pixels.run_count - 1];
      if (last.first + last.count == pixels.count) return static_cast<void>(last.count += count);
    }
    pixels.runs[pixels.run_count++] = {pixels.count, count};
  }

  // Rows of one pixel each.
  bool next_rows(Pixels& pixels) {
    const auto here = static_cast<int>(std::min<std::int64_t>(block_, part_.last_row - row_));
    if (here <= 0) return false;
    add_run(pixels, here);
    for (; pixels.count < here; ++row_, ++pixels.count) {
      pixels.windows[pixels.count] = window_;
      pixels.constants[pixels.count] = constants_;
      pixels.targets[pixels.count] = line_target_;
      pixels.floats[pixels.count] = line_floats_;
      window_ += at_.from.row;
      if (target_ != nullptr) line_target_ += at_.to.row;
      else line_floats_ += at_.floats.row;
    }
    return true;
  }

  void begin_line() {
    const Window& w = at_.window;
    window_step_ = w.stride_width * at_.from.pixel;
    window_ = source_ + row_ * at_.from.row +
              at_.from.offset(line_ * w.stride_height - w.pad_top, -w.pad_left);
    if (target_ != nullptr) line_target_ = target_ + row_ * at_.to.row + at_.to.offset(line_, 0);
    else
      line_floats_ = floats_ + row_ * at_.floats.row + line_ * at_.target.width * at_.floats.pixel;
    constants_ = at_.constants.data() +
                 at_.line_class[static_cast<std::size_t>(line_)] * at_.column_classes * at_.padded;
    column_ = 0;
  }

  void end_line() {
    if (++line_ == part_.last_line) {
      line_ = part_.first_line;
      if (++row_ == part_.last_row) done_ = true;
    }
    if (!done_) begin_line();
  }

  const State& at_;
  const Part& part_;
  const std::byte* const source_;
  std::byte* const target_;
  float* const floats_;
  std::int64_t row_, line_, column_ = 0;
  const int block_;
  bool done_ = false;
  std::ptrdiff_t window_step_ = 0;
  const std::byte* window_ = nullptr;
  std::byte* line_target_ = nullptr;
  float* line_floats_ = nullptr;
  const std::int32_t* constants_ = nullptr;
};

TailBlock tail_block(const State& at) {
  TailBlock block;  // not filled with zeros, which takes longer than a small tail
  block.coding = at.to.coding;
  block.settling = at.settling;
  block.levels = static_cast<int>(at.target.levels);
  block.shift = at.tail.shift;
  block.entries = at.tail.entries.data();
  block.steps = at.tail.steps.data();
  block.step_count = static_cast<int>(at.tail.steps.size());
  block.float_channel = at.floats.channel;
  return block;
}

void run_part(const State& at, const Part& part, const std::byte* source, std::byte* target,
              float* floats) {
  const auto sums = at.kernels->sums[static_cast<std::size_t>(at.scheme)];
  const auto tail = at.kernels->tails[static_cast<std::size_t>(at.tail.kind)];
  // Panels at the end of a group are written whole, before the next group.
  constexpr std::ptrdiff_t stride = chunk_channels + panel_channels;
  alignas(64) std::int32_t scratch[most_block_pixels * stride];
  const std::byte* windows[most_block_pixels];
  std::byte* targets[most_block_pixels];
  float* outputs[most_block_pixels];

  SumBlock sum;
  sum.pixels = windows, sum.panel = at.weights.panel;
  sum.segments = at.segments.data(), sum.segment_count = static_cast<int>(at.segments.size());
  sum.steps = at.weights.steps, sum.narrow_steps = at.narrow_steps;
  sum.values = at.weights.values;
  sum.stride = stride, sum.fresh_weights = true;
  TailBlock then = tail_block(at);
  then.stride = stride, then.targets = targets, then.floats = outputs;

  Pixels pixels;
  PartWalk walk(at, part, source, target, floats);
  while (walk.next(pixels)) {
    sum.count = pixels.count;
    if (at.scheme == Scheme::signs12) {
      sum.pixels = pixels.windows;
      at.kernels->less_signs(sum, pixels.addends);
      sum.pixels = windows;
    } else {
      std::fill_n(pixels.addends, pixels.count, 0);
    }
    for (std::int64_t channel = part.first_channel; channel < part.last_channel;
         channel += chunk_channels) {
      const auto chunk = static_cast<std::size_t>(channel / chunk_channels);
      for (std::size_t r = at.first_run[chunk]; r < at.first_run[chunk + 1]; ++r) {
        const PanelRun& run = at.runs[r];
        for (int i = 0; i < pixels.count; ++i) windows[i] = pixels.windows[i] + run.source;
        sum.weights = at.weights.bytes.data() + run.panel * at.weights.panel;
        sum.panels = run.panels;
        sum.sums = scratch + run.channel;
        sums(sum);
      }
      // One run of panels in all calls: its weights stay.
      sum.fresh_weights = part.last_channel - part.first_channel > chunk_channels ||
                          at.first_run[chunk + 1] - at.first_run[chunk] > 1;
      then.channels =
          static_cast<int>(std::min<std::int64_t>(chunk_channels, part.last_channel - channel));
      then.first_channel = channel;
      then.scales = at.scales.data() + channel;
      const std::int64_t each = has_many_thresholds(at.tail.kind) ? 256 : then.levels - 1;
      then.thresholds = at.tail.thresholds.from(channel * each);
      then.gains = at.tail.gains.from(channel);
      then.offsets = at.tail.offsets.from(channel);
      then.limits = at.tail.limits.from(channel);
      then.bottoms = at.tail.bottoms.from(channel), then.tops = at.tail.tops.from(channel);
      then.lows = at.tail.lows.from(channel), then.highs = at.tail.highs.from(channel);
      then.first = at.tail.first.from(channel);
      const std::int64_t place = at.to.coding == Coding::bytes    ? channel
                                 : at.to.coding == Coding::planes ? channel / 4
                                                                  : channel / 8;
      for (int r = 0; r < pixels.run_count; ++r) {
        const auto [first, count] = pixels.runs[r];
        for (int i = 0; i < count; ++i) {
          if (target != nullptr) targets[i] = pixels.targets[first + i] + place;
          else outputs[i] = pixels.floats[first + i] + channel * at.floats.channel;
        }
        then.count = count, then.sums = scratch + first * stride;
        then.constants = pixels.constants + first, then.addends = pixels.addends + first;
        tail(then);
      }
    }
  }
}

// All pixels pass a chunk of channels where that saves more than reading them again costs.
void run_chunks(const State& at, const Part& part, const std::byte* source, std::byte* target,
                float* floats) {
  const std::int64_t pixels =
      (part.last_row - part.first_row) * (part.last_line - part.first_line) * at.target.width;
  const bool by_chunks = at.kernels->spreads_weights && pixels > at.kernels->block_pixels &&
                         (at.scheme == Scheme::dot4 || at.scheme == Scheme::dot2);
  const std::int64_t most = by_chunks ? chunk_channels : part.last_channel - part.first_channel;
  for (Part chunk = part; chunk.first_channel < part.last_channel; chunk.first_channel += most) {
    chunk.last_channel = std::min(chunk.first_channel + most, part.last_channel);
    run_part(at, chunk, source, target, floats);
  }
  if (at.kernels->end != nullptr && is_dot(at.scheme)) at.kernels->end();
}

}  // namespace

void PackedProduct::run(const std::byte* source, std::byte* target, const Part& part) const {
  run_chunks(*state_, part, source, target, nullptr);
}

void PackedProduct::run(const std::byte* source, float* target, const Part& part) const {
  run_chunks(*state_, part, source, nullptr, target);
}

}  // namespace anybit::lowbit
