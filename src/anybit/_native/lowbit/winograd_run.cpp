// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "packed_run.hpp"
#include "pixel_epilogue.hpp"
#include "scratch.hpp"

namespace anybit::lowbit {

namespace {

using State = PackedProduct::State;

constexpr std::ptrdiff_t sums_stride = chunk_channels;
constexpr std::ptrdiff_t most_group = most_block_pixels / (winograd_outputs * winograd_outputs);

// A square of outputs of a row of the batch.
struct Tile {
  std::int64_t row, line, column;
};

// Adjacent squares of the same lines.
struct TileGroup {
  int first, count;
};

class WinogradRun {
 public:
  WinogradRun(const State& at, const Part& part, const std::byte* source, std::byte* target,
              float* floats, const float* const* arrays)
      : at_(at),
        part_(part),
        source_(source),
        target_(target),
        floats_(floats),
        epilogue_(at, sums_stride, arrays) {}

  // Memory for some squares.
  static std::size_t bytes(const State& at, int tiles) {
    return static_cast<std::size_t>(at.winograd.inputs(tiles)) * sizeof(std::int16_t) +
           static_cast<std::size_t>(products(at, tiles) + sums(tiles)) * sizeof(std::int32_t);
  }

  void run(std::byte* room, int tiles) {
    inputs_ = reinterpret_cast<std::int16_t*>(room);
    products_ = reinterpret_cast<std::int32_t*>(
        room + static_cast<std::size_t>(at_.winograd.inputs(tiles)) * sizeof(std::int16_t));
    sums_ = products_ + products(at_, tiles);
    position_ = at_.winograd.position(tiles);
    for (std::int64_t row = part_.first_row; row < part_.last_row; ++row)
      for (std::int64_t line = part_.first_line; line < part_.last_line; line += winograd_outputs)
        for (std::int64_t column = 0; column < at_.target.width; column += winograd_outputs) {
          add({row, line, column});
          if (count_ == tiles) finish();
        }
    if (count_ > 0) finish();
  }

 private:
  static std::int64_t products(const State& at, int tiles) {
    return std::int64_t{winograd_positions} * tiles * at.kernels->winograd_panels * panel_channels;
  }
  static std::int64_t sums(int tiles) {
    return std::int64_t{tiles} * winograd_outputs * winograd_outputs * sums_stride;
  }

  int lines_of(const Tile& tile) const {
    return static_cast<int>(std::min<std::int64_t>(winograd_outputs, part_.last_line - tile.line));
  }

  // Transforms the inputs of a square. Those outside the source do not matter: wanted outputs do
  // not depend on them.
  void add(const Tile& tile) {
    const Storage& from = at_.from;
    const std::int64_t top = tile.line - at_.window.pad_top,
                       left = tile.column - at_.window.pad_left;
    WinogradSource source;
    for (int i = 0; i < winograd_inputs; ++i) {
      const std::int64_t y = std::min(top + i, from.height + from.border.bottom - 1);
      const std::int64_t x = std::min(left + i, from.width + from.border.right - 1);
      source.lines[i] = source_ + tile.row * from.row + from.offset(y, 0);
      source.columns[i] = x * from.pixel;
    }
    source.channels = at_.source.channels;
    source.to = inputs_ + count_ * at_.winograd.channels;
    source.position = position_;
    at_.kernels->winograd_source(source);
    const bool follows =
        group_count_ > 0 && groups_[group_count_ - 1].count < most_group && tile.column > 0;
    if (follows) ++groups_[group_count_ - 1].count;
    else groups_[group_count_++] = {count_, 1};
    tiles_[count_] = tile;
    pixels_[count_++] = reinterpret_cast<const std::byte*>(source.to);
  }

  void finish() {
    for (std::int64_t channel = part_.first_channel; channel < part_.last_channel;
         channel += chunk_channels) {
      const auto channels =
          static_cast<int>(std::min<std::int64_t>(chunk_channels, part_.last_channel - channel));
      for (int first = 0; first < channels; first += at_.kernels->winograd_panels * panel_channels)
        multiply(channel + first, (channels - first + panel_channels - 1) / panel_channels, first);
      for (int i = 0; i < group_count_; ++i) store(groups_[i], channel, channels);
    }
    count_ = group_count_ = 0;
  }

  // Computes the sums of some panels, of `left` ones of a chunk, from channel `place` of it on.
  void multiply(std::int64_t channel, int left, int place) {
    const Winograd& winograd = at_.winograd;
    SumBlock block{};
    block.pixels = pixels_, block.count = count_;
    block.panel = winograd.panel, block.panels = std::min(left, at_.kernels->winograd_panels);
    block.segment_count = 1, block.steps = winograd.steps;
    block.stride = block.panels * panel_channels, block.fresh_weights = true;
    const std::ptrdiff_t position = count_ * block.stride;
    for (int i = 0; i < winograd_positions; ++i) {
      const std::ptrdiff_t offset =
          i * position_ * static_cast<std::ptrdiff_t>(sizeof(std::int16_t));
      block.segments = &offset;
      block.weights = winograd.weights.data() + channel / panel_channels * winograd.panel +
                      std::ptrdiff_t{i} * winograd.steps * panel_channels * 4;
      block.sums = products_ + i * position;
      at_.kernels->words(block);
    }
    for (int i = 0; i < group_count_; ++i)
      add_up(groups_[i], block.panels * panel_channels, position, place);
  }

  // Adds up the products of some channels for the squares of a group.
  void add_up(const TileGroup& group, int channels, std::ptrdiff_t position, int place) {
    const std::int64_t width = width_of(group);
    WinogradSums sums;
    sums.position = position, sums.channels = channels;
    sums.lines = lines_of(tiles_[group.first]);
    sums.line = width * sums_stride, sums.pixel = sums_stride;
    for (int i = 0; i < group.count; ++i) {
      const std::int64_t column = std::int64_t{i} * winograd_outputs;
      sums.sums = products_ + (group.first + i) * channels;
      sums.columns = static_cast<int>(std::min<std::int64_t>(winograd_outputs, width - column));
      sums.to = sums_of(group) + column * sums_stride + place;
      at_.kernels->winograd_sums(sums);
    }
  }

  std::int32_t* sums_of(const TileGroup& group) const {
    return sums_ + group.first * winograd_outputs * winograd_outputs * sums_stride;
  }

  // Columns of a group.
  std::int64_t width_of(const TileGroup& group) const {
    return std::min<std::int64_t>(group.count * winograd_outputs,
                                  at_.target.width - tiles_[group.first].column);
  }

  void store(const TileGroup& group, std::int64_t channel, int channels) {
    const Tile& tile = tiles_[group.first];
    const std::int64_t width = width_of(group);
    pixels_of_group_.count = 0;
    for (int y = 0; y < lines_of(tile); ++y) {
      const PixelLine line(at_, tile.row, tile.line + y, target_, floats_);
      line.put(pixels_of_group_, pixels_of_group_.count, static_cast<int>(width), tile.column);
      pixels_of_group_.count += static_cast<int>(width);
    }
    std::fill_n(pixels_of_group_.addends, pixels_of_group_.count, 0);
    pixels_of_group_.run_count = 1;
    pixels_of_group_.runs[0] = {0, pixels_of_group_.count};
    epilogue_.start(pixels_of_group_);
    epilogue_.run(pixels_of_group_, channel, channels, sums_of(group));
  }

  const State& at_;
  const Part& part_;
  const std::byte* const source_;
  std::byte* const target_;
  float* const floats_;
  PixelEpilogue epilogue_;
  Pixels pixels_of_group_;

  std::int16_t* inputs_ = nullptr;
  std::int32_t *products_ = nullptr, *sums_ = nullptr;
  std::ptrdiff_t position_ = 0;
  int count_ = 0, group_count_ = 0;
  Tile tiles_[most_winograd_tiles];
  TileGroup groups_[most_winograd_tiles];
  const std::byte* pixels_[most_winograd_tiles];
};

thread_local Scratch scratch;

// Without memory, computes square by square on the stack.
[[gnu::noinline]] void run_on_stack(WinogradRun& run) {
  constexpr std::size_t bytes =
      (winograd_positions * (most_winograd_channels + winograd_gap)) * 2 +
      (winograd_positions * chunk_channels + winograd_outputs * winograd_outputs * sums_stride) * 4;
  alignas(64) std::byte room[bytes];
  run.run(room, 1);
}

}  // namespace

void run_winograd(const State& at, const Part& part, const std::byte* source, std::byte* target,
                  float* floats, const float* const* arrays) {
  WinogradRun run(at, part, source, target, floats, arrays);
  const int tiles = at.winograd.most_tiles;
  if (std::byte* const room = scratch.get(WinogradRun::bytes(at, tiles))) run.run(room, tiles);
  else run_on_stack(run);
}

}  // namespace anybit::lowbit
