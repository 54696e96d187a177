// SPDX-License-Identifier: Apache-2.0
// Memory layout of the indices of a tensor.
//
// The order is batch row, line, pixel, channel (NHWC), so that a kernel row of a convolution is
// contiguous and needs no copy. A border of pixels with index 0 surrounds each row of the batch, so
// that windows need no branches at the edges. Products correct for the contribution of these zeros.
//
// Bits are padded with 0 after the last channel of a pixel; bytes are not padded.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "ops/types.hpp"
#include "program.hpp"

namespace anybit::lowbit {

// Kernels are compiled once per ISA level: the linker must not merge the functions they call.
#if defined(__GNUC__)
#define ANYBIT_INLINE [[gnu::always_inline]] inline
#else
#define ANYBIT_INLINE inline
#endif

static_assert(std::endian::native == std::endian::little, "words of bits are read as bytes, too");

enum class Coding : std::uint8_t {
  bytes,   // one byte per channel
  bits,    // words of 32 channels: channel c is bit c % 32 of word c / 32; up to 2 levels
  planes,  // two words per 32 channels, low bits then high bits; up to 4 levels
  // The same bits with whole codes in nibbles: nibble i of the first word has the low bits, then
  // the high bits of channels 4 i and 4 i + 1, that of the second word those of the next two.
  nibbles,
};

constexpr std::int64_t most_levels_of(Coding coding) {
  return coding == Coding::bytes ? 256 : coding == Coding::bits ? 2 : 4;
}

// Bytes of 32 channels of a coding other than bytes.
constexpr std::int64_t word_bytes(Coding coding) { return coding == Coding::bits ? 4 : 8; }

// Padding pixels around a row of the batch.
struct Border {
  std::int64_t top = 0, left = 0, bottom = 0, right = 0;

  static Border of(const Window& window) {
    return {window.pad_top, window.pad_left, window.pad_bottom, window.pad_right};
  }
  bool empty() const { return top == 0 && left == 0 && bottom == 0 && right == 0; }
};

// Bytes after the memory of a tensor that kernels may read and ignore.
inline constexpr std::int64_t slack = 256;
inline constexpr std::int64_t alignment = 64;

struct Storage {
  Coding coding = Coding::bytes;
  std::int64_t height = 0, width = 0, channels = 0;
  Border border;
  // Strides of pixels, lines and rows of the batch in bytes. Rows are aligned to `alignment`.
  std::int64_t pixel = 0, line = 0, row = 0;

  Storage() = default;
  // Throws Error if the size exceeds any memory. With several readers, pass their largest border.
  Storage(Coding coding, const Tensor& tensor, const Border& border);

  // Offset of a pixel in its row; the pixel may be in the border.
  std::int64_t offset(std::int64_t y, std::int64_t x) const {
    return (y + border.top) * line + (x + border.left) * pixel;
  }
  // Bytes of some rows, without the slack.
  std::int64_t size(std::int64_t rows) const { return rows * row; }
};

// Zeroes the border of rows [first, last).
void clear_border(const Storage& storage, std::byte* tensor, std::int64_t first, std::int64_t last);

// Zeroes rows [first, last), as `put` requires for codings other than bytes.
inline void clear(const Storage& storage, std::byte* tensor, std::int64_t first,
                  std::int64_t last) {
  std::memset(tensor + first * storage.row, 0,
              static_cast<std::size_t>((last - first) * storage.row));
}

ANYBIT_INLINE std::uint32_t word_at(const std::byte* at) {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

ANYBIT_INLINE void store_word(std::byte* at, std::uint32_t word) {
  std::memcpy(at, &word, sizeof word);
}

// Turns two words of `planes` into those of `nibbles`, and back.
ANYBIT_INLINE void mix_planes(std::uint32_t& first, std::uint32_t& second) {
  constexpr std::uint32_t low = 0x33333333u;
  const std::uint32_t both = (first >> 2 & low) | (second & ~low);
  first = (first & low) | (second & low) << 2;
  second = both;
}

// Returns the index of a channel.
ANYBIT_INLINE std::uint8_t take(Coding coding, const std::byte* pixel, std::int64_t channel) {
  const auto bit = [&](std::int64_t word) { return word_at(pixel + word * 4) >> channel % 32 & 1; };
  switch (coding) {
    case Coding::bytes:
      return static_cast<std::uint8_t>(pixel[channel]);
    case Coding::bits:
      return static_cast<std::uint8_t>(bit(channel / 32));
    case Coding::planes:
    case Coding::nibbles:
      break;
  }
  if (coding == Coding::nibbles) {
    const std::uint32_t word = word_at(pixel + (channel / 32 * 2 + channel / 2 % 2) * 4);
    const std::uint32_t code = word >> (channel % 32 / 4 * 4 + channel % 2);
    return static_cast<std::uint8_t>((code & 1) | (code >> 1 & 2));
  }
  return static_cast<std::uint8_t>(bit(channel / 32 * 2) | bit(channel / 32 * 2 + 1) << 1);
}

// Sets the index of a channel; it must be 0 before unless the coding is bytes. Threads must not
// share words.
ANYBIT_INLINE void put(Coding coding, std::byte* pixel, std::int64_t channel, std::uint8_t index) {
  const auto set_at = [&](std::int64_t word, std::uint32_t bit, std::int64_t place) {
    std::byte* const at = pixel + word * 4;
    store_word(at, word_at(at) | (bit & 1) << place);
  };
  const auto set = [&](std::int64_t word, std::uint32_t bit) { set_at(word, bit, channel % 32); };
  const auto high = static_cast<std::uint32_t>(index >> 1);
  switch (coding) {
    case Coding::bytes:
      pixel[channel] = static_cast<std::byte>(index);
      return;
    case Coding::bits:
      return set(channel / 32, index);
    case Coding::planes:
      set(channel / 32 * 2, index);
      return set(channel / 32 * 2 + 1, high);
    case Coding::nibbles: {
      const std::int64_t word = channel / 32 * 2 + channel / 2 % 2;
      const std::int64_t place = channel % 32 / 4 * 4 + channel % 2;
      set_at(word, index, place), set_at(word, high, place + 2);
    }
  }
}

// Packs 8 bytes of 0 or 1 to bits, the first byte to the lowest bit.
ANYBIT_INLINE std::uint32_t packed_eight(std::uint64_t bytes) {
  return static_cast<std::uint32_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

// Inverse of `packed_eight`.
ANYBIT_INLINE std::uint64_t spread_eight(std::uint32_t bits) {
  const std::uint64_t copies = (bits & 0xffu) * 0x0101010101010101u & 0x8040201008040201u;
  return (copies + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
}

// Writes the indices of channels [first, first + count). Both numbers are multiples of 32, except
// that the last run may be shorter; its padding bits become 0.
ANYBIT_INLINE void put_run(Coding coding, std::byte* pixel, std::int64_t first,
                           const std::uint8_t* indices, std::int64_t count) {
  if (coding == Coding::bytes) {
    std::memcpy(pixel + first, indices, static_cast<std::size_t>(count));
    return;
  }
  const std::int64_t planes = coding == Coding::bits ? 1 : 2;
  for (std::int64_t done = 0; done < count; done += 32) {
    std::uint8_t few[32] = {};
    const std::int64_t here = count - done < 32 ? count - done : 32;
    const std::uint8_t* from = indices + done;
    if (here < 32) {
      std::memcpy(few, from, static_cast<std::size_t>(here));
      from = few;
    }
    std::uint32_t words[2] = {};
    for (std::int64_t plane = 0; plane < planes; ++plane)
      for (int eight = 0; eight < 4; ++eight) {
        std::uint64_t bytes;
        std::memcpy(&bytes, from + eight * 8, sizeof bytes);
        words[plane] |= packed_eight(bytes >> plane) << eight * 8;
      }
    if (coding == Coding::nibbles) mix_planes(words[0], words[1]);
    std::memcpy(pixel + (first + done) / 32 * planes * 4, words,
                static_cast<std::size_t>(planes * 4));
  }
}

// Reads the indices of channels [first, first + count); first is a multiple of 32.
ANYBIT_INLINE void take_run(Coding coding, const std::byte* pixel, std::int64_t first,
                            std::uint8_t* indices, std::int64_t count) {
  if (coding == Coding::bytes) {
    std::memcpy(indices, pixel + first, static_cast<std::size_t>(count));
    return;
  }
  const std::int64_t planes = coding == Coding::bits ? 1 : 2;
  for (std::int64_t done = 0; done < count; done += 8) {
    const std::byte* const at = pixel + (first + done) / 32 * planes * 4;
    const std::int64_t shift = done % 32;
    std::uint32_t low = word_at(at), high = planes == 2 ? word_at(at + 4) : 0;
    if (coding == Coding::nibbles) mix_planes(low, high);
    const std::uint64_t bytes = spread_eight(low >> shift) | spread_eight(high >> shift) << 1;
    const std::int64_t here = count - done < 8 ? count - done : 8;
    std::memcpy(indices + done, &bytes, static_cast<std::size_t>(here));
  }
}

}  // namespace anybit::lowbit
