// SPDX-License-Identifier: Apache-2.0
// Partition of a stage's work for several threads.
#pragma once

#include <algorithm>

#include "stage.hpp"

namespace anybit::lowbit {

// A stage over some rows of the batch, split into pieces of about equal size.
class StageSplit {
 public:
  StageSplit() = default;
  StageSplit(const Stage& stage, std::int64_t rows, std::int64_t pieces)
      : stage_(&stage), rows_(rows) {
    groups_ = (stage.lines + stage.line_grain - 1) / stage.line_grain;
    const std::int64_t groups = rows * groups_;
    const std::int64_t tiles = (stage.channels + channel_grain - 1) / channel_grain;
    by_channels_ = stage.by_channels && groups < pieces && tiles > groups;
    units_ = by_channels_ ? tiles : groups;
    pieces_ = std::min(pieces, units_);
  }

  int pieces() const { return static_cast<int>(pieces_); }

  void run(const Memory& memory, int piece) const {
    const std::int64_t first = units_ * piece / pieces_, last = units_ * (piece + 1) / pieces_;
    const std::int64_t lines = stage_->lines, channels = stage_->channels;
    if (by_channels_)
      return stage_->run(memory, {0, rows_, 0, lines, first * channel_grain,
                                  std::min(last * channel_grain, channels)});
    // The rest of the first row, whole rows, and the first lines of the last row.
    const std::int64_t row = first / groups_, end = last / groups_;
    const std::int64_t line = first % groups_ * stage_->line_grain,
                       rest = last % groups_ * stage_->line_grain;
    if (row == end) return stage_->run(memory, {row, row + 1, line, rest, 0, channels});
    const std::int64_t whole = line == 0 ? row : row + 1;
    if (line != 0) stage_->run(memory, {row, row + 1, line, lines, 0, channels});
    if (whole < end) stage_->run(memory, {whole, end, 0, lines, 0, channels});
    if (rest != 0) stage_->run(memory, {end, end + 1, 0, rest, 0, channels});
  }

 private:
  const Stage* stage_ = nullptr;
  std::int64_t rows_ = 0, units_ = 0, pieces_ = 1;
  std::int64_t groups_ = 1;  // of lines, in a row
  bool by_channels_ = false;
};

}  // namespace anybit::lowbit
