// SPDX-License-Identifier: Apache-2.0
// Stage of a Gather instruction.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runs.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

class GatherStage final : public TensorStage {
 public:
  GatherStage(const Gather& at, const Place& from, const Place& to, const ElementLoops& loops)
      : TensorStage(Gather::name, &from, to),
        loops_(loops),
        rows_(at.rows.begin(), at.rows.end()),
        columns_(at.columns.begin(), at.columns.end()),
        channels_(at.channels.begin(), at.channels.end()),
        first_(at.first_channel),
        fill_(static_cast<std::uint8_t>(at.fill < 0 ? 0 : at.fill)) {
    copies_ = channels_[0] >= 0 && (in_bytes(from) || channels_[0] % 32 == 0);
    for (std::size_t i = 1; i < channels_.size(); ++i)
      copies_ = copies_ && channels_[i] == channels_[i - 1] + 1;
    const std::int32_t first = columns_[0];
    repeats_ = in_bytes(to) && static_cast<std::int64_t>(channels_.size()) == to.storage.channels &&
               std::ranges::all_of(columns_, [=](std::int32_t column) { return column == first; });
    const bool whole = in_bytes(from) && in_bytes(to) && std::ranges::min(columns_) >= 0;
    in_parts_ = copies_ && !repeats_ && whole && channels_.size() % part_bytes == 0;
    const auto count = static_cast<std::int64_t>(channels_.size());
    picks_ = whole && count == 1 && channels_[0] >= 0 && !repeats_;
    if (!copies_ && !repeats_ && whole && std::ranges::min(channels_) >= 0 &&
        std::min(count, from.storage.channels) >= permuted_bytes)
      prepare_permutation(from.storage.channels);
    elements = lines * to.storage.width * static_cast<std::int64_t>(channels_.size());
  }

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>((rows_.size() + columns_.size() + channels_.size()) * 4);
  }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const std::byte* const from = source->row(memory, row);
    std::byte* const to = target->row(memory, row);
    const auto count = static_cast<std::int64_t>(channels_.size());
    const std::int32_t line = rows_[static_cast<std::size_t>(y)];
    const std::int64_t width = target->storage.width;
    if (in_parts_ && line >= 0)
      return copy_line(from + source->storage.offset(line, 0) + channels_[0],
                       to + target->storage.offset(y, 0) + first_);
    if (picks_ && line >= 0)
      return pick(from + source->storage.offset(line, 0) + channels_[0],
                  to + target->storage.offset(y, 0) + first_);
    if (!parts_.empty() && line >= 0)
      return loops_.permute({parts_.data(), ends_.data(), static_cast<std::int64_t>(ends_.size()),
                             columns_.data(), width, source->storage.pixel, target->storage.pixel},
                            from + source->storage.offset(line, 0),
                            to + target->storage.offset(y, 0) + first_);
    for_each_run(repeats_ ? 1 : width, count, false, [&](const Run& run) {
      const std::int32_t column = columns_[static_cast<std::size_t>(run.pixel)];
      Run placed = run;
      placed.channel += first_;
      Room room;
      std::uint8_t* const result = room_for(target->storage, to, y, placed, room);
      if (line < 0 || column < 0) std::fill_n(result, run.count, fill_);
      else collect(from + source->storage.offset(line, column), run, result);
      put_indices(target->storage, to, y, placed, result);
    });
    if (repeats_) repeat(to + target->storage.offset(y, 0), width);
  }

 private:
  static constexpr std::int64_t part_bytes = 16;

  // Finds the parts of the source from which 16 channels come. The last ones are taken twice.
  void prepare_permutation(std::int64_t source_channels) {
    const auto count = static_cast<std::int64_t>(channels_.size());
    for (std::int64_t block = 0; block < count; block += permuted_bytes) {
      const std::int64_t to = std::min(block, count - permuted_bytes);
      const auto begin = static_cast<std::ptrdiff_t>(parts_.size());
      for (std::int64_t i = 0; i < permuted_bytes; ++i) {
        const std::int64_t channel = channels_[static_cast<std::size_t>(to + i)];
        const auto from = static_cast<std::int32_t>(
            std::min(channel / permuted_bytes * permuted_bytes, source_channels - permuted_bytes));
        auto part = std::find_if(parts_.begin() + begin, parts_.end(),
                                 [=](const BytePart& at) { return at.from == from; });
        if (part == parts_.end()) {
          part = parts_.insert(part, BytePart{{}, from, static_cast<std::int32_t>(to)});
          std::ranges::fill(part->places, std::uint8_t{128});
        }
        part->places[i] = static_cast<std::uint8_t>(channel - from);
      }
      ends_.push_back(static_cast<std::int32_t>(parts_.size()));
    }
  }

  // Copies channels of the pixels of a line in parts of constant size.
  void copy_line(const std::byte* from, std::byte* to) const {
    const auto count = static_cast<std::int64_t>(channels_.size());
    const std::int64_t pixel = source->storage.pixel, step = target->storage.pixel;
    for (const std::int32_t column : columns_) {
      const std::byte* const start = from + column * pixel;
      for (std::int64_t c = 0; c < count; c += part_bytes)
        std::memcpy(to + c, start + c, std::size_t{part_bytes});
      to += step;
    }
  }

  // Copies a channel of the pixels of a line.
  void pick(const std::byte* from, std::byte* to) const {
    const std::int64_t pixel = source->storage.pixel, step = target->storage.pixel;
    for (const std::int32_t column : columns_) {
      *to = from[column * pixel];
      to += step;
    }
  }

  // Repeats the first pixel of a line.
  void repeat(std::byte* line, std::int64_t width) const {
    const std::int64_t pixel = target->storage.pixel;
    for (std::int64_t done = 1, more = 0; done < width; done += more) {
      more = std::min(done, width - done);
      std::memcpy(line + done * pixel, line, static_cast<std::size_t>(more * pixel));
    }
  }

  void collect(const std::byte* pixel, const Run& run, std::uint8_t* to) const {
    const Coding coding = source->storage.coding;
    const std::int32_t* const sources = channels_.data() + run.channel;
    if (copies_) return take_run(coding, pixel, sources[0], to, run.count);
    for (std::int64_t i = 0; i < run.count; ++i)
      to[i] = sources[i] < 0 ? fill_ : take(coding, pixel, sources[i]);
  }

  const ElementLoops& loops_;
  const std::vector<std::int32_t> rows_, columns_, channels_;
  const std::int64_t first_;
  const std::uint8_t fill_;
  bool copies_ = false;   // sources are one contiguous run
  bool repeats_ = false;  // all pixels of a line are equal
  bool in_parts_ = false;
  bool picks_ = false;  // there is one channel
  // Bytes in another order; empty elsewhere.
  std::vector<BytePart> parts_;
  std::vector<std::int32_t> ends_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Gather& at, const Place& source, const Place& target,
                                  const ElementLoops& loops) {
  return std::make_unique<GatherStage>(at, source, target, loops);
}

}  // namespace anybit::lowbit
