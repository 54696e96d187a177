// SPDX-License-Identifier: Apache-2.0
// Stages of scales and zero-points that are computed at run time, and of codes by these.
#include <algorithm>
#include <cmath>
#include <vector>

#include "dynamic_scale.hpp"
#include "runs.hpp"
#include "tensor_stage.hpp"
#include "transposed_floats.hpp"

namespace anybit::lowbit {

namespace {

// Base of stages that compute a number from the elements of each pixel, or of a whole row.
class StatisticStage : public Stage {
 public:
  StatisticStage(std::string_view instruction, const SizedFloats& from, const SizedFloats& to,
                 const ElementLoops& loops)
      : loops_(loops), from_(from), to_(to) {
    name = instruction;
    lines = to.sizes.height;
    // Its time is that of its reads.
    elements = from.sizes.elements();
    is_whole_ = to.sizes.height * to.sizes.width == 1;
  }

  std::string kernel() const override { return "floats"; }

  void run(const Memory& memory, const Part& part) const final {
    const std::int64_t width = to_.sizes.width;
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t pixel = part.first_line * width; pixel < part.last_line * width; ++pixel)
        to_.place.write(memory, row)[pixel * to_.place.strides.pixel] =
            result(memory, row, pixel, find_magnitudes(from_.place.read(memory, row), pixel));
  }

 protected:
  virtual float result(const Memory& memory, std::int64_t row, std::int64_t pixel,
                       const Magnitudes& magnitudes) const = 0;

 private:
  Magnitudes find_magnitudes(const float* row, std::int64_t pixel) const {
    const FloatStrides& strides = from_.place.strides;
    // The elements of a row are contiguous in any order.
    if (is_whole_) return loops_.find_magnitudes(row, from_.sizes.elements());
    const float* const x = row + pixel * strides.pixel;
    if (strides.channel == 1) return loops_.find_magnitudes(x, from_.sizes.channels);
    Magnitudes all;
    for (std::int64_t c = 0; c < from_.sizes.channels; ++c) {
      const Magnitudes one = loops_.find_magnitudes(x + c * strides.channel, 1);
      all = {std::max(all.above, one.above), std::max(all.below, one.below)};
    }
    return all;
  }

  const ElementLoops& loops_;
  const SizedFloats from_, to_;
  bool is_whole_ = false;
};

class DynamicScaleStage final : public StatisticStage {
 public:
  DynamicScaleStage(const DynamicScale& at, const SizedFloats& from, const SizedFloats& to,
                    const ElementLoops& loops)
      : StatisticStage(DynamicScale::name, from, to, loops),
        constants_{at.steps[0], at.least[0], at.most[0], at.asymmetric != 0} {}

 protected:
  float result(const Memory&, std::int64_t, std::int64_t,
               const Magnitudes& magnitudes) const override {
    return compute_scale(constants_, magnitudes);
  }

 private:
  const ScaleConstants constants_;
};

class DynamicZeroStage final : public StatisticStage {
 public:
  DynamicZeroStage(const DynamicZero& at, const SizedFloats& from, const FloatPlace& scale,
                   const SizedFloats& to, const ElementLoops& loops)
      : StatisticStage(DynamicZero::name, from, to, loops),
        scale_(scale),
        lowest_(static_cast<float>(at.lowest)),
        highest_(static_cast<float>(at.highest)) {}

 protected:
  float result(const Memory& memory, std::int64_t row, std::int64_t pixel,
               const Magnitudes& magnitudes) const override {
    const float scale = scale_.read(memory, row)[pixel * scale_.strides.pixel];
    return compute_zero(magnitudes, scale, lowest_, highest_);
  }

 private:
  const FloatPlace scale_;
  const float lowest_, highest_;
};

class DynamicQuantizeStage final : public TensorStage {
 public:
  DynamicQuantizeStage(const DynamicQuantize& at, const SizedFloats& from, const SizedFloats& scale,
                       const FloatPlace& zero, const Tensor& tensor, const Place& to,
                       const ElementLoops& loops)
      : TensorStage(DynamicQuantize::name, nullptr, to),
        loops_(loops),
        from_(from),
        scale_(scale.place),
        zero_(zero),
        has_zero_(at.has_zero()),
        one_line_(scale.sizes.height * scale.sizes.width == 1),
        rounds_first_(at.rounds_first != 0),
        lowest_(static_cast<float>(tensor.lowest)),
        highest_(static_cast<float>(tensor.lowest + tensor.levels - 1)),
        order_(at.channels.begin(), at.channels.end()) {
    if (order_.empty())
      for (std::int64_t c = 0; c < channels; ++c)
        order_.push_back(c < from.sizes.channels ? static_cast<std::int32_t>(c) : -1);
    while (own_ < channels && order_[own_] == own_) ++own_;
    zeros_ = channels;
    while (zeros_ > own_ && order_[zeros_ - 1] < 0) --zeros_;
    whole_lines_ = one_line_ && in_bytes(to) && from.sizes.channels == channels && own_ == channels;
  }

  std::string kernel() const override { return "divide to " + TensorStage::kernel(); }

 protected:
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const std::int64_t width = target->storage.width, channels_of_x = from_.sizes.channels;
    const FloatStrides& strides = from_.place.strides;
    const float* const x = from_.place.read(memory, row) + y * width * strides.pixel;
    if (from_.place.channels_last()) return fill_pixels(memory, row, y, 0, width, x, channels_of_x);
    // Channels are not contiguous: transpose blocks of them first.
    if (channels_of_x > most_floats) {
      for (std::int64_t pixel = 0; pixel < width; ++pixel)
        fill_strided(memory, row, y, pixel, x + pixel * strides.pixel);
      return;
    }
    float room[most_floats];
    const std::int64_t together = most_floats / channels_of_x;
    for (std::int64_t pixel = 0; pixel < width; pixel += together) {
      const std::int64_t pixels = std::min(together, width - pixel);
      transpose_floats(x + pixel * strides.pixel, strides.channel, channels_of_x, pixels, room,
                       channels_of_x);
      fill_pixels(memory, row, y, pixel, pixels, room, channels_of_x);
    }
  }

 private:
  static constexpr std::int64_t most_floats = 1024;

  // The formula of a line, and the index of its zero-point.
  struct Line {
    DynamicLine formula;
    std::uint8_t zero;
  };

  Line line_of(const Memory& memory, std::int64_t row, std::int64_t pixel) const {
    const std::int64_t at = one_line_ ? 0 : pixel;
    const float scale = scale_.read(memory, row)[at * scale_.strides.pixel];
    const float zero = has_zero_ ? zero_.read(memory, row)[at * zero_.strides.pixel] : 0;
    const float code = round_within(zero, lowest_, highest_);
    const auto index = static_cast<std::uint8_t>(static_cast<std::int32_t>(code - lowest_));
    if (!rounds_first_) return {{scale, zero, code, lowest_, highest_}, index};
    // The codes less that of the zero-point; NaN becomes the lowest.
    const float lowest = lowest_ - code, highest = highest_ - code;
    return {{scale, 0, lowest, lowest, highest}, index};
  }

  // Fills pixels whose channels are contiguous.
  void fill_pixels(const Memory& memory, std::int64_t row, std::int64_t y, std::int64_t pixel,
                   std::int64_t pixels, const float* x, std::int64_t step) const {
    if (whole_lines_) {
      std::byte* const to = target->row(memory, row) + target->storage.offset(y, pixel);
      return loops_.quantize(line_of(memory, row, 0).formula, x, pixels * channels,
                             reinterpret_cast<std::uint8_t*>(to));
    }
    for (std::int64_t i = 0; i < pixels; ++i) {
      const Line line = line_of(memory, row, y * target->storage.width + pixel + i);
      for (std::int64_t c = 0; c < channels; c += run_length)
        store(memory, row, y, {pixel + i, c, std::min(run_length, channels - c)}, line,
              x + i * step, 1);
    }
  }

  // Fills a pixel whose channels are not contiguous, in parts.
  void fill_strided(const Memory& memory, std::int64_t row, std::int64_t y, std::int64_t pixel,
                    const float* x) const {
    const Line line = line_of(memory, row, y * target->storage.width + pixel);
    for (std::int64_t c = 0; c < channels; c += run_length)
      store(memory, row, y, {pixel, c, std::min(run_length, channels - c)}, line, x,
            from_.place.strides.channel);
  }

  // Stores the codes of a run. x has the channels of the pixel.
  void store(const Memory& memory, std::int64_t row, std::int64_t y, const Run& run,
             const Line& line, const float* x, std::int64_t stride) const {
    Room room;
    std::byte* const to = target->row(memory, row);
    std::uint8_t* const indices = room_for(target->storage, to, y, run, room);
    const std::int64_t own = stride == 1 ? within(own_, run) : 0, zeros = within(zeros_, run);
    if (own > 0) loops_.quantize(line.formula, x + run.channel, own, indices);
    float others[run_length];
    for (std::int64_t i = own; i < zeros; ++i) {
      const std::int32_t channel = order_[run.channel + i];
      others[i] = channel < 0 ? 0 : x[channel * stride];
    }
    loops_.quantize(line.formula, others + own, zeros - own, indices + own);
    for (std::int64_t i = own; i < zeros; ++i)
      if (order_[run.channel + i] < 0) indices[i] = line.zero;
    std::fill_n(indices + zeros, run.count - zeros, line.zero);
    put_indices(target->storage, to, y, run, indices);
  }

  // Returns a channel as one of a run, from 0 to its count.
  static std::int64_t within(std::int64_t channel, const Run& run) {
    return std::clamp<std::int64_t>(channel - run.channel, 0, run.count);
  }

  const ElementLoops& loops_;
  const SizedFloats from_;
  const FloatPlace scale_, zero_;
  const bool has_zero_, one_line_, rounds_first_;
  const float lowest_, highest_;
  // The channel of the source for each channel, or -1 for the zero-point. The first `own_` are
  // those of the source in their order; from `zeros_` on there are only zero-points.
  std::vector<std::int32_t> order_;
  std::int64_t own_ = 0, zeros_ = 0;
  bool whole_lines_ = false;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const DynamicScale& at, const SizedFloats& source,
                                  const SizedFloats& target, const ElementLoops& loops) {
  return std::make_unique<DynamicScaleStage>(at, source, target, loops);
}

std::unique_ptr<Stage> make_stage(const DynamicZero& at, const SizedFloats& source,
                                  const FloatPlace& scale, const SizedFloats& target,
                                  const ElementLoops& loops) {
  return std::make_unique<DynamicZeroStage>(at, source, scale, target, loops);
}

std::unique_ptr<Stage> make_stage(const DynamicQuantize& at, const SizedFloats& source,
                                  const SizedFloats& scale, const FloatPlace& zero,
                                  const Tensor& tensor, const Place& target,
                                  const ElementLoops& loops) {
  return std::make_unique<DynamicQuantizeStage>(at, source, scale, zero, tensor, target, loops);
}

}  // namespace anybit::lowbit
