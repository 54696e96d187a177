// SPDX-License-Identifier: Apache-2.0
#include "packed_run.hpp"

#include <algorithm>
#include <cstring>

#include "pixel_epilogue.hpp"

namespace anybit::lowbit {

namespace {

using State = PackedProduct::State;

// Copies the windows of a block of pixels to `room`. What follows a window meets weights of 0.
void gather_windows(const State::Gathered& gathered, Pixels& pixels, std::byte* room) {
  for (int i = 0; i < pixels.count; ++i, room += gathered_bytes) {
    const std::byte* const window = pixels.windows[i];
    std::byte* to = room;
    for (const std::ptrdiff_t run : gathered.runs) {
      std::memcpy(to, window + run, copied_bytes);
      to += gathered.run_bytes;
    }
    pixels.windows[i] = room;
  }
}

void run_part(const State& at, const Part& part, const std::byte* source, std::byte* target,
              float* floats, const float* const* arrays) {
  // Panels at the end of a group are written whole; the next group overwrites the excess.
  constexpr std::ptrdiff_t stride = chunk_channels + panel_channels;
  alignas(64) std::int32_t scratch[most_block_pixels * stride];
  const std::byte* windows[most_block_pixels];
  alignas(64) std::byte gathered[most_block_pixels * gathered_bytes];
  auto* const shorts = reinterpret_cast<std::int16_t*>(scratch);

  SumBlock sum;
  sum.panel = at.weights.panel;
  sum.segments = at.segments.data(), sum.segment_count = static_cast<int>(at.segments.size());
  sum.steps = at.weights.steps, sum.narrow_steps = at.narrow_steps;
  sum.most_extras = at.weights.most_extras;
  sum.values = at.weights.values, sum.rows = at.rows;
  sum.stride = stride, sum.fresh_weights = true;
  PixelEpilogue epilogue(at, stride, arrays);

  Pixels pixels;
  std::fill_n(pixels.addends, most_block_pixels, 0);
  PixelBlocks walk(at, part, source, target, floats);
  while (walk.next(pixels)) {
    sum.count = pixels.count;
    if (!at.gathered.runs.empty()) gather_windows(at.gathered, pixels, gathered);
    sum.pixels = pixels.windows;
    epilogue.start(pixels);
    if (at.scheme == Scheme::signs12) at.kernels->less_signs(sum, pixels.addends);
    for (std::int64_t channel = part.first_channel; channel < part.last_channel;
         channel += chunk_channels) {
      const auto chunk = static_cast<std::size_t>(channel / chunk_channels);
      const bool is_short = at.short_epilogue.covers(chunk);
      const auto sums = is_short ? at.short_sums : at.sums;
      const auto channels =
          static_cast<int>(std::min<std::int64_t>(chunk_channels, part.last_channel - channel));
      for (std::size_t r = at.first_run[chunk]; r < at.first_run[chunk + 1]; ++r) {
        const State::PanelRun& run = at.runs[r];
        sum.pixels = run.source == 0 ? pixels.windows : windows;
        if (run.source != 0)
          for (int i = 0; i < pixels.count; ++i) windows[i] = pixels.windows[i] + run.source;
        sum.weights = at.weights.bytes.data() + run.panel * at.weights.panel;
        sum.panels = run.panels;
        sum.sums = scratch + run.channel, sum.shorts = shorts + run.channel;
        sums(sum);
      }
      // A single run of panels: all calls use the same weights.
      sum.fresh_weights = part.last_channel - part.first_channel > chunk_channels ||
                          at.first_run[chunk + 1] - at.first_run[chunk] > 1;
      if (is_short) epilogue.run(pixels, channel, channels, shorts);
      else epilogue.run(pixels, channel, channels, scratch);
    }
  }
}

}  // namespace

// Runs all pixels chunk by chunk of channels if spreading the weights once saves more than
// rereading the pixels costs.
void run_product(const State& at, const Part& part, const std::byte* source, std::byte* target,
                 float* floats, const float* const* arrays) {
  if (at.winograd.used()) return run_winograd(at, part, source, target, floats, arrays);
  const std::int64_t pixels =
      (part.last_row - part.first_row) * (part.last_line - part.first_line) * at.target.width;
  // Or if the weights of a chunk stay in the L2 cache, but those of all channels do not.
  constexpr std::size_t near_bytes = 256 * 1024;
  const bool by_chunks = at.kernels->spreads_weights && pixels > at.block_pixels &&
                         is_dot(at.scheme) &&
                         (bits_of_index(at.scheme) < 8 || at.weights.bytes.bytes() > near_bytes);
  const std::int64_t most = by_chunks ? chunk_channels : part.last_channel - part.first_channel;
  for (Part chunk = part; chunk.first_channel < part.last_channel; chunk.first_channel += most) {
    chunk.last_channel = std::min(chunk.first_channel + most, part.last_channel);
    run_part(at, chunk, source, target, floats, arrays);
  }
  if (at.kernels->end != nullptr && is_dot(at.scheme)) at.kernels->end();
}

}  // namespace anybit::lowbit
