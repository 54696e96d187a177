// SPDX-License-Identifier: Apache-2.0
// Stage of a SpatialMean instruction.
#include <algorithm>

#include "stage.hpp"
#include "transposed_floats.hpp"

namespace anybit::lowbit {

namespace {

class SpatialMeanStage final : public Stage {
 public:
  SpatialMeanStage(const SizedFloats& from, const FloatPlace& to, const ElementLoops& loops)
      : loops_(loops), from_(from), to_(to), pixels_(from.sizes.height * from.sizes.width) {
    name = SpatialMean::name;
    channels = from.sizes.channels;
    // Its time is that of its reads.
    elements = from.sizes.elements();
  }

  std::string kernel() const override { return "floats"; }

  void run(const Memory& memory, const Part& part) const override {
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t c = 0; c < channels; c += most_channels) {
        const std::int64_t count = std::min(most_channels, channels - c);
        float lanes[4][most_channels] = {};
        add(from_.place.read(memory, row) + c * from_.place.strides.channel, count, lanes);
        float* const to = to_.write(memory, row) + c;
        for (std::int64_t i = 0; i < count; ++i)
          to[i] = ((lanes[0][i] + lanes[2][i]) + (lanes[1][i] + lanes[3][i])) /
                  static_cast<float>(pixels_);
      }
  }

 private:
  static constexpr std::int64_t most_channels = 16, most_pixels = 64;

  void add(const float* x, std::int64_t count, float (&lanes)[4][most_channels]) const {
    const FloatStrides& strides = from_.place.strides;
    if (from_.place.channels_last())
      return loops_.add_pixels(x, pixels_, strides.pixel, static_cast<int>(count), lanes);
    // Channels are not contiguous: transpose blocks of them first.
    float room[most_pixels * most_channels] = {};
    for (std::int64_t pixel = 0; pixel < pixels_; pixel += most_pixels) {
      const std::int64_t some = std::min(most_pixels, pixels_ - pixel);
      transpose_floats(x + pixel * strides.pixel, strides.channel, count, some, room,
                       most_channels);
      loops_.add_pixels(room, some, most_channels, most_channels, lanes);
    }
  }

  const ElementLoops& loops_;
  const SizedFloats from_;
  const FloatPlace to_;
  const std::int64_t pixels_;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const SpatialMean&, const SizedFloats& source,
                                  const FloatPlace& target, const ElementLoops& loops) {
  return std::make_unique<SpatialMeanStage>(source, target, loops);
}

}  // namespace anybit::lowbit
