// SPDX-License-Identifier: Apache-2.0
// Stages of elementwise instructions on indices.
#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "_native/isa/levels.hpp"
#include "channel_tables.hpp"
#include "product_kernels.hpp"
#include "runs.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// Part of a table that belongs to a channel.
template <class Element>
class PerChannel {
 public:
  PerChannel(std::span<const Element> entries, std::int64_t size)
      : entries_(entries.begin(), entries.end()), size_(size) {}

  bool per_channel() const { return static_cast<std::int64_t>(entries_.size()) > size_; }
  const Element* of(std::int64_t channel) const {
    return entries_.data() + (per_channel() ? channel * size_ : 0);
  }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(entries_.size() * sizeof(Element));
  }

 private:
  std::vector<Element> entries_;
  std::int64_t size_;
};

// to[i] = the entry at first[i] * levels + second[i] of channel i. Arguments are read only once:
// the compiler assumes that bytes may overwrite anything else.
void look_up_channels(const std::uint8_t* table, std::int64_t size, std::int64_t levels,
                      const std::uint8_t* first, const std::uint8_t* second, std::int64_t n,
                      std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i, table += size) to[i] = table[first[i] * levels + second[i]];
}

void look_up_channels(const std::uint8_t* table, std::int64_t size, const std::uint8_t* from,
                      std::int64_t n, std::uint8_t* to) {
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4, table += 4 * size) {
    const std::uint8_t* const own[] = {table, table + size, table + 2 * size, table + 3 * size};
    const std::uint8_t entries[] = {own[0][from[i]], own[1][from[i + 1]], own[2][from[i + 2]],
                                    own[3][from[i + 3]]};
    for (int k = 0; k < 4; ++k) to[i + k] = entries[k];
  }
  for (; i < n; ++i, table += size) to[i] = table[from[i]];
}

class LookupStage final : public TensorStage {
 public:
  LookupStage(const Lookup& at, const Tensor& tensor, const Place& from, const Place& to,
              Level level)
      : TensorStage(Lookup::name, &from, to),
        loops_(kernels_of<ElementLoops>(level)),
        look_up_channels_(kernels_of<ProductKernels>(level).look_up_channels),
        entries_(at.entries, tensor.levels) {
    if (!entries_.per_channel()) std::ranges::copy(at.entries, whole_table_);
    else if (in_bytes(from) && in_bytes(to) && look_up_channels_ != nullptr)
      tables_.emplace(at.entries, tensor.levels);
    if (tables_.has_value() && !tables_->is_grouped()) tables_.reset();
  }

  std::int64_t bytes() const override {
    return entries_.bytes() + (tables_.has_value() ? tables_->bytes() : 0);
  }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const std::byte* const from = source->row(memory, row);
    std::byte* const to = target->row(memory, row);
    const bool whole_lines =
        entries_.per_channel() ? tables_.has_value() : in_bytes(*source) && in_bytes(*target);
    for_each_run(target->storage.width, channels, whole_lines, [&](const Run& run) {
      Room in, out;
      const std::uint8_t* const indices = indices_at(source->storage, from, y, run, in);
      std::uint8_t* const result = room_for(target->storage, to, y, run, out);
      if (!entries_.per_channel()) loops_.lookup(whole_table_, indices, run.count, result);
      else if (tables_.has_value())
        look_up_channels_(tables_->chunks(), tables_->chunk_count(), indices, run.count, result);
      else look_up_channels(entries_.of(run.channel), entries_.size(), indices, run.count, result);
      put_indices(target->storage, to, y, run, result);
    });
  }

 private:
  const ElementLoops& loops_;
  decltype(ProductKernels::look_up_channels) look_up_channels_;
  const PerChannel<std::uint8_t> entries_;
  std::uint8_t whole_table_[256] = {};
  std::optional<ChannelTables> tables_;
};

// Base of stages that map two indices to one.
class PairStage : public TensorStage {
 public:
  PairStage(std::string_view instruction, const Place& from, const Place& other, const Place& to,
            bool per_channel)
      : TensorStage(instruction, &from, to),
        other_(other),
        whole_lines_(in_bytes(from) && in_bytes(other) && in_bytes(to) && !per_channel &&
                     from.storage.channels == other.storage.channels) {}

 protected:
  // Computes the indices of a run that begins at a channel.
  virtual void combine(const Run& run, const std::uint8_t* first, const std::uint8_t* second,
                       std::uint8_t* to) const = 0;

  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const final {
    std::byte* const to = target->row(memory, row);
    for_each_run(target->storage.width, channels, whole_lines_, [&](const Run& run) {
      Room in, other_in, out;
      const std::uint8_t* const first = operand(*source, memory, row, y, run, in);
      const std::uint8_t* const second = operand(other_, memory, row, y, run, other_in);
      std::uint8_t* const result = room_for(target->storage, to, y, run, out);
      combine(run, first, second, result);
      put_indices(target->storage, to, y, run, result);
    });
  }

 private:
  // Returns the indices of a source; a single channel is broadcast.
  const std::uint8_t* operand(const Place& place, const Memory& memory, std::int64_t row,
                              std::int64_t y, const Run& run, Room& room) const {
    const std::byte* const from = place.row(memory, row);
    if (place.storage.channels == channels) return indices_at(place.storage, from, y, run, room);
    const std::byte* const pixel = from + place.storage.offset(y, run.pixel);
    std::fill_n(room, run.count, take(place.storage.coding, pixel, 0));
    return room;
  }

  const Place& other_;
  const bool whole_lines_;
};

class CombineStage final : public PairStage {
 public:
  CombineStage(const Combine& at, const Tensor& first, const Tensor& second, const Place& from,
               const Place& other, const Place& to, const ElementLoops& loops)
      : CombineStage({at.entries, first.levels * second.levels}, second, from, other, to, loops) {}

  std::int64_t bytes() const override { return entries_.bytes(); }

 protected:
  void combine(const Run& run, const std::uint8_t* first, const std::uint8_t* second,
               std::uint8_t* to) const override {
    if (!entries_.per_channel())
      return loops_.combine(entries_.of(0), levels_, first, second, run.count, to);
    look_up_channels(entries_.of(run.channel), entries_.size(), levels_, first, second, run.count,
                     to);
  }

 private:
  CombineStage(PerChannel<std::uint8_t> entries, const Tensor& second, const Place& from,
               const Place& other, const Place& to, const ElementLoops& loops)
      : PairStage(Combine::name, from, other, to, entries.per_channel()),
        loops_(loops),
        levels_(static_cast<std::int32_t>(second.levels)),
        entries_(std::move(entries)) {}

  const ElementLoops& loops_;
  const std::int32_t levels_;
  const PerChannel<std::uint8_t> entries_;
};

template <class Kind>
class ArithmeticStage final : public PairStage {
 public:
  ArithmeticStage(const Kind& at, const Place& from, const Place& other, const Place& to,
                  const ElementLoops& loops)
      : PairStage(Kind::name, from, other, to, false),
        loop_(std::is_same_v<Kind, Add> ? loops.add : loops.multiply),
        arithmetic_{at.zeros[0],
                    at.zeros[1],
                    at.gains[0],
                    at.gains[1],
                    at.offset[0],
                    at.divisor[0],
                    static_cast<float>(at.lowest - at.shift),
                    static_cast<float>(at.highest - at.shift),
                    static_cast<std::int32_t>(at.shift)} {}

 protected:
  void combine(const Run& run, const std::uint8_t* first, const std::uint8_t* second,
               std::uint8_t* to) const override {
    loop_(arithmetic_, first, second, run.count, to);
  }

 private:
  decltype(ElementLoops::add) const loop_;
  const PairArithmetic arithmetic_;
};

// Returns a formula for a list of values that has exactly these, bit for bit.
std::optional<ScaledValues> find_formula(std::span<const float> values) {
  const auto zero = std::ranges::find(values, 0.0f);
  if (values.end() - zero < 2) return std::nullopt;
  const ScaledValues formula{static_cast<std::int32_t>(zero - values.begin()), zero[1]};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value =
        static_cast<float>(static_cast<std::int32_t>(i) - formula.zero) * formula.scale;
    if (std::bit_cast<std::uint32_t>(value) != std::bit_cast<std::uint32_t>(values[i]))
      return std::nullopt;
  }
  return formula;
}

class DequantizeStage final : public Stage {
 public:
  DequantizeStage(const Dequantize& at, const Tensor& tensor, const Place& from,
                  const FloatPlace& to, const ElementLoops& loops)
      : loops_(loops),
        port_(to),
        values_(at.values, tensor.levels),
        formula_(find_formula(at.values)),
        whole_lines_(in_bytes(from) && !values_.per_channel() && to.channels_last()) {
    name = Dequantize::name;
    source = &from;
    lines = tensor.height;
    channels = tensor.channels;
    elements = tensor.elements();
  }

  std::string kernel() const override { return std::string(name_of(source->storage.coding)); }
  std::int64_t bytes() const override { return values_.bytes(); }

  void run(const Memory& memory, const Part& part) const override {
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t y = part.first_line; y < part.last_line; ++y)
        write(source->row(memory, row), y, port_.write(memory, row));
  }

 private:
  void write(const std::byte* from, std::int64_t y, float* row) const {
    const std::int64_t width = source->storage.width;
    for_each_run(width, channels, whole_lines_, [&](const Run& run) {
      Room room;
      const std::uint8_t* const indices = indices_at(source->storage, from, y, run, room);
      float* const to =
          row + (y * width + run.pixel) * port_.strides.pixel + run.channel * port_.strides.channel;
      if (port_.channels_last() && !values_.per_channel())
        return formula_ ? loops_.scaled(*formula_, indices, run.count, to)
                        : loops_.values(values_.of(0), indices, run.count, to);
      for (std::int64_t i = 0; i < run.count; ++i)
        to[i * port_.strides.channel] = values_.of(run.channel + i)[indices[i]];
    });
  }

  const ElementLoops& loops_;
  const FloatPlace port_;
  const PerChannel<float> values_;
  const std::optional<ScaledValues> formula_;
  const bool whole_lines_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Lookup& at, const Tensor& tensor, const Place& source,
                                  const Place& target, Level level) {
  return std::make_unique<LookupStage>(at, tensor, source, target, level);
}

std::unique_ptr<Stage> make_stage(const Combine& at, const Tensor& first, const Tensor& second,
                                  const Place& first_place, const Place& second_place,
                                  const Place& target, const ElementLoops& loops) {
  return std::make_unique<CombineStage>(at, first, second, first_place, second_place, target,
                                        loops);
}

std::unique_ptr<Stage> make_stage(const Add& at, const Place& first, const Place& second,
                                  const Place& target, const ElementLoops& loops) {
  return std::make_unique<ArithmeticStage<Add>>(at, first, second, target, loops);
}

std::unique_ptr<Stage> make_stage(const Multiply& at, const Place& first, const Place& second,
                                  const Place& target, const ElementLoops& loops) {
  return std::make_unique<ArithmeticStage<Multiply>>(at, first, second, target, loops);
}

std::unique_ptr<Stage> make_stage(const Dequantize& at, const Tensor& tensor, const Place& source,
                                  const FloatPlace& target, const ElementLoops& loops) {
  return std::make_unique<DequantizeStage>(at, tensor, source, target, loops);
}

}  // namespace anybit::lowbit
