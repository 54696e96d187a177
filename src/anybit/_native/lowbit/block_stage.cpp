// SPDX-License-Identifier: Apache-2.0
// Stage of a BlockProduct or AsymmetricBlockProduct instruction.
#include <algorithm>
#include <cstring>
#include <vector>

#include "block_layout.hpp"
#include "damage.hpp"
#include "dynamic_scale.hpp"
#include "packed_weights.hpp"
#include "stage.hpp"

namespace anybit::lowbit {

namespace {

constexpr std::int64_t vector_bytes = 64, bytes_together = 4;  // of a step, for a channel

// Steps of a block: whole halves of a group.
std::int64_t steps_of(std::int64_t channels) { return (channels + 15) / 16 * 4; }

// Bits of the planes that indices are stored in.
int stored_bits(std::int64_t bits) { return bits == 7 ? 8 : static_cast<int>(bits); }

// The number of `bits` bits at a place among others without gaps.
std::int64_t number_at(Bytes numbers, std::int64_t place, std::int64_t bits) {
  const auto bit = static_cast<std::size_t>(place * bits);
  std::uint32_t both = numbers[bit / 8];
  if (bit / 8 + 1 < numbers.size()) both |= std::uint32_t{numbers[bit / 8 + 1]} << 8;
  return both >> bit % 8 & ((1u << bits) - 1);
}

// Packs weights: per panel and block groups of 8 steps, perhaps one of 4, planes of bits in turn;
// then the scales, and the sums of the weights if activations have zero-points. After all panels
// follow the zero-points of weights, a byte each, per panel and block.
class BlockPacking {
 public:
  BlockPacking(const BlockTask& task, std::int64_t depth, std::int64_t channels, bool has_zeros)
      : at_(task.product),
        zero_points_(task.zero_points),
        depth_(depth),
        channels_(channels),
        block_(std::min(at_.block, depth)),
        blocks_((depth + block_ - 1) / block_),
        bits_(stored_bits(at_.weight_bits)),
        has_zeros_(has_zeros) {}

  std::int64_t blocks() const { return blocks_; }
  std::int64_t block() const { return block_; }
  std::int64_t size_of(std::int64_t block) const {
    return std::min(block_, depth_ - block * block_);
  }
  std::int64_t panels() const { return (channels_ + panel_channels - 1) / panel_channels; }
  std::int64_t panel_bytes() const {
    return (blocks_ - 1) * block_bytes(0) + block_bytes(blocks_ - 1);
  }

  std::int64_t weight_bytes() const { return panels() * panel_bytes(); }
  std::int64_t zero_bytes() const {
    return zero_points_.empty() ? 0 : panels() * blocks_ * panel_channels;
  }

  void write(std::byte* to) const {
    for (std::int64_t channel = 0; channel < channels_; ++channel) {
      std::byte* const panel = to + channel / panel_channels * panel_bytes();
      for (std::int64_t block = 0; block < blocks_; ++block)
        write_block(channel, block, panel + block * block_bytes(0));
    }
    for (std::int64_t i = 0; !zero_points_.empty() && i < channels_ * blocks_; ++i) {
      const std::int64_t channel = i / blocks_, block = i % blocks_;
      to[weight_bytes() + (channel / panel_channels * blocks_ + block) * panel_channels +
         channel % panel_channels] = static_cast<std::byte>(zero_point(channel, block));
    }
  }

  std::int64_t block_bytes(std::int64_t block) const {
    return (weight_vectors(block) + (has_zeros_ ? 2 : 1)) * vector_bytes;
  }

 private:
  std::int64_t weight_vectors(std::int64_t block) const {
    const std::int64_t steps = steps_of(size_of(block));
    return steps / 8 * group_vectors(bits_, 8) + (steps % 8 != 0 ? group_vectors(bits_, 4) : 0);
  }

  std::int64_t zero_point(std::int64_t channel, std::int64_t block) const {
    if (zero_points_.empty()) return -at_.lowest;
    return number_at(zero_points_, channel * blocks_ + block, at_.weight_bits);
  }

  void write_block(std::int64_t channel, std::int64_t block, std::byte* to) const {
    const std::int64_t lane = channel % panel_channels, size = size_of(block);
    const std::int64_t steps = steps_of(size), group_bytes = group_vectors(bits_, 8) * vector_bytes;
    const std::int64_t zero_point = this->zero_point(channel, block);
    std::uint32_t sum = 0;  // modulo 2^32, as sums of products
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t number =
          number_at(at_.weights, channel * depth_ + block * block_ + i, at_.weight_bits);
      sum += static_cast<std::uint32_t>(number - zero_point);
      const std::int64_t step = i / bytes_together, group = step / 8;
      const auto in_group = static_cast<int>(std::min<std::int64_t>(8, steps - group * 8));
      put(to + group * group_bytes + lane * bytes_together + i % bytes_together, step % 8, in_group,
          number);
    }
    std::byte* const scales = to + weight_vectors(block) * vector_bytes + lane * 4;
    std::memcpy(scales, &at_.scales[static_cast<std::size_t>(channel * blocks_ + block)], 4);
    if (has_zeros_) std::memcpy(scales + vector_bytes, &sum, 4);
  }

  // Puts the bits of an index into the planes of a group.
  void put(std::byte* to, std::int64_t step, int steps, std::int64_t number) const {
    for (int bits = bits_; bits > 0;) {
      const int plane = low_plane(bits), phases = 8 / plane;
      const auto part = static_cast<unsigned>(number) & ((1u << plane) - 1);
      to[step / phases * vector_bytes] |= static_cast<std::byte>(part << step % phases * plane);
      to += plane_vectors(plane, steps) * vector_bytes;
      number >>= plane, bits -= plane;
    }
  }

  const BlockProduct& at_;
  const Bytes zero_points_;
  const std::int64_t depth_, channels_, block_, blocks_;
  const int bits_;
  const bool has_zeros_;
};

std::vector<std::int32_t> ones_of(std::int64_t channels) {
  std::vector<std::int32_t> ones(static_cast<std::size_t>(steps_of(channels)));
  for (std::int64_t i = 0; i < channels; ++i)
    ones[static_cast<std::size_t>(i / bytes_together)] |= 1 << i % bytes_together * 8;
  return ones;
}

class BlockStage final : public Stage {
 public:
  BlockStage(const BlockTask& task, const SizedFloats& to, Level level)
      : to_(to.place),
        zero_(task.zero),
        has_zero_(task.product.has_zero()),
        one_zero_(task.one_zero),
        low_code_(static_cast<float>(task.tensor.lowest)),
        high_code_(static_cast<float>(task.tensor.lowest + task.tensor.levels - 1)),
        width_(task.tensor.width),
        kernels_(kernels_of<ProductKernels>(level)) {
    const bool is_asymmetric = !task.zero_points.empty();
    name = is_asymmetric ? AsymmetricBlockProduct::name : BlockProduct::name;
    source = task.source;
    lines = to.sizes.height;
    channels = to.sizes.channels;
    by_channels = true;
    elements = to.sizes.elements();
    channels_of_sum = task.tensor.channels;
    multiplications = elements * channels_of_sum;
    // Codes are signed bytes, or `origin_` more.
    const bool is_signed = low_code_ >= -128 && high_code_ <= 127;
    origin_ = is_signed ? 0 : static_cast<std::int32_t>(task.tensor.lowest) + 128;
    const bool has_zeros = has_zero_ || origin_ != 0;
    const BlockProduct& product = task.product;
    const BlockPacking packing(task, channels_of_sum, channels, has_zeros);
    weights_ = room_for(packing.weight_bytes() + packing.zero_bytes(), task.most_bytes);
    packing.write(weights_.data());
    ones_ = ones_of(packing.size_of(0)),
    last_ones_ = ones_of(packing.size_of(packing.blocks() - 1));
    sums_ = kernels_.blocks[static_cast<std::size_t>(product.weight_bits - 1)];
    block_.offset = static_cast<std::uint8_t>(task.tensor.lowest - origin_);
    block_.panel = packing.panel_bytes();
    block_.bytes = packing.block_bytes(0);
    block_.block = packing.block(), block_.blocks = static_cast<int>(packing.blocks());
    block_.steps = static_cast<int>(ones_.size());
    block_.last_steps = static_cast<int>(last_ones_.size());
    block_.ones = ones_.data(), block_.last_ones = last_ones_.data();
    block_.lowest = static_cast<std::int32_t>(product.lowest);
    if (is_asymmetric) block_.zero_points = weights_.data() + packing.weight_bytes();
    block_.stride = chunk_channels;
    has_zeros_ = has_zeros;
    const std::int64_t fitting =
        std::min(most_prepared / channels_of_sum, most_sums / packing.blocks());
    prepares_ = kernels_.block_rows > 1 && fitting >= kernels_.block_rows;
    if (prepares_)
      together_ = static_cast<int>(
          std::min<std::int64_t>(most_pixels, fitting / kernels_.block_rows * kernels_.block_rows));
  }

  std::string kernel() const override { return "blocks"; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(weights_.bytes()); }

  void run(const Memory& memory, const Part& part) const override {
    Pixels pixels;
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t y = part.first_line; y < part.last_line; ++y)
        for (std::int64_t x = 0; x < width_; ++x) {
          pixels.add(*this, memory, row, y, x);
          if (pixels.count == together_) run_pixels(pixels, part, memory.backwards);
        }
    if (pixels.count > 0) run_pixels(pixels, part, memory.backwards);
  }

 private:
  static constexpr int most_pixels = 32;
  // Numbers of the buffers of a thread, which are on its stack.
  static constexpr std::int64_t most_prepared = 32 * 1024, most_sums = 4 * 1024;

  struct Pixels {
    const std::byte* sources[most_pixels];
    float* targets[most_pixels];
    std::int32_t zeros[most_pixels];
    int count = 0;

    void add(const BlockStage& at, const Memory& memory, std::int64_t row, std::int64_t y,
             std::int64_t x) {
      const std::int64_t pixel = y * at.width_ + x;
      sources[count] = at.source->row(memory, row) + at.source->storage.offset(y, x);
      targets[count] = at.to_.write(memory, row) + pixel * at.to_.strides.pixel;
      float zero = 0;
      if (at.has_zero_) {
        const std::int64_t place = at.one_zero_ ? 0 : pixel;
        zero = at.zero_.read(memory, row)[place * at.zero_.strides.pixel];
        zero = round_within(zero, at.low_code_, at.high_code_);
      }
      zeros[count++] = static_cast<std::int32_t>(zero) - at.origin_;
    }
  };

  void run_pixels(Pixels& pixels, const Part& part, bool backwards) const {
    // Weights that exceed the caches are read in reverse order by every other call.
    const std::int64_t first = part.first_channel / chunk_channels,
                       last = (part.last_channel + chunk_channels - 1) / chunk_channels;
    alignas(64) std::byte prepared[most_prepared + slack];
    std::int32_t sums[most_sums];
    BlockSums block = block_;
    if (prepares_ && pixels.count >= kernels_.block_rows) {
      for (int i = 0; i < pixels.count; ++i)
        kernels_.prepare_blocks(block, pixels.sources[i], channels_of_sum,
                                prepared + i * channels_of_sum, sums + i * block.blocks);
      block.prepared = prepared, block.prepared_bytes = channels_of_sum, block.code_sums = sums;
    }
    for (std::int64_t i = first; i < last; ++i)
      run_chunk(pixels, block, (backwards ? first + last - 1 - i : i) * chunk_channels);
    pixels.count = 0;
  }

  void run_chunk(const Pixels& pixels, BlockSums block, std::int64_t channel) const {
    alignas(64) float room[most_pixels * chunk_channels];
    const std::int64_t count = std::min<std::int64_t>(chunk_channels, channels - channel);
    block.pixels = pixels.sources, block.count = pixels.count;
    block.panels = static_cast<int>((count + panel_channels - 1) / panel_channels);
    block.weights = weights_.data() + channel / panel_channels * block_.panel;
    if (block.zero_points != nullptr) block.zero_points += channel * block.blocks;
    block.zeros = has_zeros_ ? pixels.zeros : nullptr;
    block.sums = room;
    sums_(block);
    const std::int64_t step = to_.strides.channel;
    for (int i = 0; i < pixels.count; ++i) {
      const float* const from = room + i * chunk_channels;
      float* const to = pixels.targets[i] + channel * step;
      if (step == 1) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      else
        for (std::int64_t c = 0; c < count; ++c) to[c * step] = from[c];
    }
  }

  const FloatPlace to_, zero_;
  const bool has_zero_, one_zero_;
  const float low_code_, high_code_;
  const std::int64_t width_;
  const ProductKernels& kernels_;
  int together_ = most_pixels;  // pixels
  bool prepares_ = false;
  std::int32_t origin_ = 0;
  bool has_zeros_ = false;
  Aligned<std::byte> weights_;
  std::vector<std::int32_t> ones_, last_ones_;
  BlockSums block_{};
  void (*sums_)(const BlockSums&) = nullptr;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const BlockTask& task, const SizedFloats& target, Level level) {
  return std::make_unique<BlockStage>(task, target, level);
}

}  // namespace anybit::lowbit
