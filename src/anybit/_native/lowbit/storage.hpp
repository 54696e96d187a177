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
};

constexpr std::int64_t most_levels_of(Coding coding) {
  return coding == Coding::bytes ? 256 : coding == Coding::planes ? 4 : 2;
}

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

// Returns the index of a channel.
ANYBIT_INLINE std::uint8_t take(Coding coding, const std::byte* pixel, std::int64_t channel) {
  const auto bit = [&](std::int64_t word) { return word_at(pixel + word * 4) >> channel % 32 & 1; };
  switch (coding) {
    case Coding::bytes:
      return static_cast<std::uint8_t>(pixel[channel]);
    case Coding::bits:
      return static_cast<std::uint8_t>(bit(channel / 32));
    case Coding::planes:
      break;
  }
  return static_cast<std::uint8_t>(bit(channel / 32 * 2) | bit(channel / 32 * 2 + 1) << 1);
}

// Sets the index of a channel; it must be 0 before unless the coding is bytes. Threads must not
// share words.
ANYBIT_INLINE void put(Coding coding, std::byte* pixel, std::int64_t channel, std::uint8_t index) {
  const auto set = [&](std::int64_t word, std::uint32_t bit) {
    std::byte* const at = pixel + word * 4;
    store_word(at, word_at(at) | (bit & 1) << channel % 32);
  };
  switch (coding) {
    case Coding::bytes:
      pixel[channel] = static_cast<std::byte>(index);
      return;
    case Coding::bits:
      return set(channel / 32, index);
    case Coding::planes:
      set(channel / 32 * 2, index);
      set(channel / 32 * 2 + 1, static_cast<std::uint32_t>(index >> 1));
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
  const std::int64_t planes = coding == Coding::planes ? 2 : 1;
  for (std::int64_t done = 0; done < count; done += 32) {
    std::uint8_t few[32] = {};
    const std::int64_t here = count - done < 32 ? count - done : 32;
    const std::uint8_t* from = indices + done;
    if (here < 32) {
      std::memcpy(few, from, static_cast<std::size_t>(here));
      from = few;
    }
    for (std::int64_t plane = 0; plane < planes; ++plane) {
      std::uint32_t word = 0;
      for (int eight = 0; eight < 4; ++eight) {
        std::uint64_t bytes;
        std::memcpy(&bytes, from + eight * 8, sizeof bytes);
        word |= packed_eight(bytes >> plane) << eight * 8;
      }
      store_word(pixel + ((first + done) / 32 * planes + plane) * 4, word);
    }
  }
}

// Reads the indices of channels [first, first + count); first is a multiple of 32.
ANYBIT_INLINE void take_run(Coding coding, const std::byte* pixel, std::int64_t first,
                            std::uint8_t* indices, std::int64_t count) {
  if (coding == Coding::bytes) {
    std::memcpy(indices, pixel + first, static_cast<std::size_t>(count));
    return;
  }
  const std::int64_t planes = coding == Coding::planes ? 2 : 1;
  for (std::int64_t done = 0; done < count; done += 8) {
    const std::byte* const at = pixel + (first + done) / 32 * planes * 4;
    const std::int64_t shift = done % 32;
    std::uint64_t bytes = spread_eight(word_at(at) >> shift);
    if (planes == 2) bytes |= spread_eight(word_at(at + 4) >> shift) << 1;
    const std::int64_t here = count - done < 8 ? count - done : 8;
    std::memcpy(indices + done, &bytes, static_cast<std::size_t>(here));
  }
}

}  // namespace anybit::lowbit
