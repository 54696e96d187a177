// SPDX-License-Identifier: Apache-2.0
// Stage of a Quantize instruction: float32 to indices.
#include <algorithm>
#include <cstring>
#include <vector>

#include "quantizer.hpp"
#include "runs.hpp"
#include "tensor_stage.hpp"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace anybit::lowbit {

namespace {

// Transposes 8 x 8 bytes: to[j][i] = from[i][j]. Strides of lines are in bytes.
void transpose_eight(const std::uint8_t* from, std::int64_t from_line, std::byte* to,
                     std::int64_t to_line) {
#if defined(__SSE2__)
  const auto line = [&](int i) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + i * from_line));
  };
  __m128i pairs[4], fours[4], eights[4];
  for (int i = 0; i < 4; ++i) pairs[i] = _mm_unpacklo_epi8(line(2 * i), line(2 * i + 1));
  for (int i = 0; i < 4; i += 2) {
    fours[i] = _mm_unpacklo_epi16(pairs[i], pairs[i + 1]);
    fours[i + 1] = _mm_unpackhi_epi16(pairs[i], pairs[i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    eights[2 * i] = _mm_unpacklo_epi32(fours[i], fours[i + 2]);
    eights[2 * i + 1] = _mm_unpackhi_epi32(fours[i], fours[i + 2]);
  }
  for (int i = 0; i < 4; ++i) {
    std::byte* const pair = to + 2 * i * to_line;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(pair), eights[i]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(pair + to_line),
                     _mm_unpackhi_epi64(eights[i], eights[i]));
  }
#else
  std::uint64_t words[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&words[i], from + i * from_line, 8);
  const auto swap = [&](int apart, std::uint64_t mask) {
    for (int i = 0; i < 8; ++i) {
      if ((i & apart) != 0) continue;
      const std::uint64_t both = (words[i] >> 8 * apart ^ words[i + apart]) & mask;
      words[i + apart] ^= both;
      words[i] ^= both << 8 * apart;
    }
  };
  swap(4, 0x00000000ffffffff);
  swap(2, 0x0000ffff0000ffff);
  swap(1, 0x00ff00ff00ff00ff);
  for (int i = 0; i < 8; ++i) std::memcpy(to + i * to_line, &words[i], 8);
#endif
}

// Interleaves three lines, the color channels of images, which are `apart` bytes apart. Four bytes
// are stored per pixel; the next pixel overwrites the fourth.
void interleave_three(const std::uint8_t* lines, std::int64_t apart, std::int64_t pixels,
                      std::byte* to) {
  const std::uint8_t *const first = lines, *const second = lines + apart,
                            *const third = lines + 2 * apart;
  const auto word = [&](std::int64_t p) { return first[p] | second[p] << 8 | third[p] << 16; };
  for (std::int64_t p = 0; p + 1 < pixels; ++p) {
    const std::int32_t pixel = word(p);
    std::memcpy(to + p * 3, &pixel, 4);
  }
  const std::int32_t last = word(pixels - 1);
  std::memcpy(to + (pixels - 1) * 3, &last, 3);
}

class QuantizeStage final : public TensorStage {
 public:
  QuantizeStage(const Quantize& at, const FloatPlace& from, const Tensor& tensor, const Place& to,
                const ElementLoops& loops)
      : TensorStage(Quantize::name, nullptr, to),
        loops_(loops),
        port_(from),
        quantizer_(at, tensor),
        factors_(at.factors.begin(), at.factors.end()),
        offsets_(at.offsets.begin(), at.offsets.end()),
        nan_(static_cast<std::uint8_t>(std::max<std::int64_t>(at.nan, 0))),
        refuses_nan_(at.nan < 0) {
    const bool together = from.channels_last() && !quantizer_.per_channel() && !has_lines();
    if (together && tensor.levels > 1 && !in_bytes(to))
      compare_ = to.storage.coding == Coding::bits     ? loops.bits
                 : to.storage.coding == Coding::planes ? loops.planes
                                                       : loops.nibbles;
    // Words of 32 channels are contiguous if those of a pixel are.
    whole_lines_ =
        together && (in_bytes(to) || (compare_ != nullptr && to.storage.channels % 32 == 0));
  }

  std::string kernel() const override {
    return std::string(quantizer_.method()) + " to " + TensorStage::kernel();
  }
  std::int64_t bytes() const override {
    return quantizer_.bytes() + static_cast<std::int64_t>((factors_.size() + offsets_.size()) * 4);
  }

 protected:
  void fill_lines(const Memory& memory, std::int64_t row, std::int64_t first,
                  std::int64_t last) const override {
    if (port_.channels_last()) return TensorStage::fill_lines(memory, row, first, last);
    fill_transposed(memory, port_.read(memory, row), target->row(memory, row), first, last);
  }

  // Where channels are contiguous.
  void fill(const Memory& memory, std::int64_t row, std::int64_t y) const override {
    const float* const x =
        port_.read(memory, row) + y * target->storage.width * port_.strides.pixel;
    std::byte* const to = target->row(memory, row);
    // Comparison writes bits without a buffer of indices.
    const std::int64_t width = target->storage.width, together = whole_lines_ ? width : 1;
    if (compare_ != nullptr)
      for (std::int64_t pixel = 0; pixel < width; pixel += together)
        compare(memory, x + pixel * port_.strides.pixel, to, y, {pixel, 0, together * channels});
    else
      for_each_run(width, channels, whole_lines_, [&](const Run& run) {
        store(memory, x + run.pixel * port_.strides.pixel + run.channel, to, y, run);
      });
  }

 private:
  void store(const Memory& memory, const float* x, std::byte* to, std::int64_t y,
             const Run& run) const {
    Room room;
    std::uint8_t* const result = room_for(target->storage, to, y, run, room);
    if (quantizer_.per_channel())
      for (std::int64_t i = 0; i < run.count; ++i)
        indices(memory, quantizer_.map(run.channel + i), x + i, 1, result + i);
    else if (!has_lines()) indices(memory, quantizer_.map(0), x, run.count, result);
    else {
      float y[run_length];
      line_of_channels(x, run.channel, run.count, y);
      indices(memory, quantizer_.map(0), y, run.count, result);
    }
    put_indices(target->storage, to, y, run, result);
  }

  void compare(const Memory& memory, const float* x, std::byte* to, std::int64_t y,
               const Run& run) const {
    const ThresholdMap& map = quantizer_.map(0);
    std::byte* const words = to + target->storage.offset(y, run.pixel);
    if (!compare_(map, x, run.count, words)) return;
    for (std::int64_t done = 0; done < run.count; done += run_length) {
      const std::int64_t here = std::min(run_length, run.count - done);
      Room room;
      indices(memory, map, x + done, here, room);
      put_run(target->storage.coding, words, done, room, here);
    }
  }

  // Quantizes lines whose channels are not contiguous: the pixels of a channel are.
  void fill_transposed(const Memory& memory, const float* x, std::byte* to, std::int64_t first_line,
                       std::int64_t last_line) const {
    const std::int64_t width = target->storage.width, last = last_line * width;
    std::uint8_t block[most_channels * most_pixels];
    for (std::int64_t c = 0; c < channels; c += most_channels) {
      const std::int64_t some = std::min(most_channels, channels - c);
      for (std::int64_t first = first_line * width; first < last; first += most_pixels) {
        const std::int64_t here = std::min(most_pixels, last - first);
        for (std::int64_t i = 0; i < some; ++i)
          channel_indices(memory, c + i, x + (c + i) * port_.strides.channel + first, here,
                          block + i * most_pixels);
        put_block(block, first, here, c, some, to);
      }
    }
  }

  // Stores `some` channels from c on of `count` pixels from `first` on.
  void put_block(const std::uint8_t* block, std::int64_t first, std::int64_t count, std::int64_t c,
                 std::int64_t some, std::byte* to) const {
    const Storage& storage = target->storage;
    const bool joined = storage.line == storage.width * storage.pixel;
    // Lines are short: transposing whole blocks is faster.
    const bool copied = in_bytes(*target) && !joined && channels != 3;
    std::byte mixed[most_channels * most_pixels];
    if (copied) interleave(block, most_pixels, count, some, mixed, some);
    for (std::int64_t done = 0, here; done < count; done += here) {
      const std::int64_t y = (first + done) / storage.width, x = (first + done) % storage.width;
      here = joined ? count : std::min(count - done, storage.width - x);
      std::byte* const pixels = to + storage.offset(y, x);
      if (copied) copy_pixels(mixed + done * some, some, here, pixels + c);
      else if (in_bytes(*target))
        interleave(block + done, most_pixels, here, some, pixels + c, channels);
      else pack(block + done, most_pixels, here, c, some, pixels);
    }
  }

  // Copies `some` channels of some pixels.
  void copy_pixels(const std::byte* from, std::int64_t some, std::int64_t pixels,
                   std::byte* to) const {
    if (some == channels)
      return static_cast<void>(std::memcpy(to, from, static_cast<std::size_t>(pixels * some)));
    for (std::int64_t p = 0; p < pixels; ++p, from += some, to += channels)
      if (some == most_channels) std::memcpy(to, from, most_channels);
      else std::memcpy(to, from, static_cast<std::size_t>(some));
  }

  // Channels and pixels per block.
  static constexpr std::int64_t most_channels = 32, most_pixels = 256;
  void channel_indices(const Memory& memory, std::int64_t channel, const float* x, std::int64_t n,
                       std::uint8_t* to) const {
    if (!has_lines()) return indices(memory, quantizer_.map(channel), x, n, to);
    float y[most_pixels];
    line_of_pixels(x, channel, n, y);
    indices(memory, quantizer_.map(0), y, n, to);
  }

  bool has_lines() const { return !factors_.empty() || !offsets_.empty(); }

  // Computes x * factor + offset for n channels of a pixel, or n pixels of a channel.
  [[gnu::noinline]] void line_of_channels(const float* x, std::int64_t channel, std::int64_t n,
                                          float* y) const {
    std::copy_n(x, n, y);
    if (!factors_.empty())
      for (std::int64_t i = 0; i < n; ++i) y[i] *= factors_.data()[channel + i];
    if (!offsets_.empty())
      for (std::int64_t i = 0; i < n; ++i) y[i] += offsets_.data()[channel + i];
  }
  [[gnu::noinline]] void line_of_pixels(const float* x, std::int64_t channel, std::int64_t n,
                                        float* y) const {
    std::copy_n(x, n, y);
    if (!factors_.empty())
      for (std::int64_t i = 0; i < n; ++i) y[i] *= factors_.data()[channel];
    if (!offsets_.empty())
      for (std::int64_t i = 0; i < n; ++i) y[i] += offsets_.data()[channel];
  }

  // Interleaves lines of one channel each, which are `apart` bytes apart; pixels of the target are
  // `pixel` bytes apart.
  void interleave(const std::uint8_t* lines, std::int64_t apart, std::int64_t pixels,
                  std::int64_t some, std::byte* to, std::int64_t pixel) const {
    if (some == 3 && channels == 3) return interleave_three(lines, apart, pixels, to);
    const std::int64_t whole_lines = some / 8 * 8, whole_pixels = pixels / 8 * 8;
    for (std::int64_t i = 0; i < whole_lines; i += 8)
      for (std::int64_t p = 0; p < whole_pixels; p += 8)
        transpose_eight(lines + i * apart + p, apart, to + p * pixel + i, pixel);
    for (std::int64_t i = 0; i < some; ++i)
      for (std::int64_t p = i < whole_lines ? whole_pixels : 0; p < pixels; ++p)
        to[p * pixel + i] = static_cast<std::byte>(lines[i * apart + p]);
  }

  void pack(const std::uint8_t* lines, std::int64_t apart, std::int64_t pixels, std::int64_t c,
            std::int64_t some, std::byte* to) const {
    for (std::int64_t p = 0; p < pixels; ++p) {
      std::uint8_t few[32];
      for (std::int64_t i = 0; i < some; ++i) few[i] = lines[i * apart + p];
      put_run(target->storage.coding, to + p * target->storage.pixel, c, few, some);
    }
  }

  void indices(const Memory& memory, const ThresholdMap& map, const float* x, std::int64_t n,
               std::uint8_t* to) const {
    if (!loops_.indices(map, x, n, to)) return;
    for (std::int64_t i = 0; i < n; ++i)
      if (x[i] != x[i]) to[i] = nan_;
    if (refuses_nan_) memory.refused_nan->store(true, std::memory_order_relaxed);
  }

  const ElementLoops& loops_;
  const FloatPlace port_;
  const Quantizer quantizer_;
  const std::vector<float> factors_, offsets_;  // per channel, or empty
  const std::uint8_t nan_;
  const bool refuses_nan_;
  bool (*compare_)(const ThresholdMap&, const float*, std::int64_t, std::byte*) = nullptr;
  bool whole_lines_ = false;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const Quantize& at, const FloatPlace& source,
                                  const Tensor& tensor, const Place& target,
                                  const ElementLoops& loops) {
  return std::make_unique<QuantizeStage>(at, source, tensor, target, loops);
}

}  // namespace anybit::lowbit
