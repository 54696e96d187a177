// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace anybit::lowbit {

namespace {

// Codes of weights in `rows22`, as multiples of the unit; `rows11` has bits, 1 where w > 0.
constexpr int multiples[] = {0, 1, -1, -2};

unsigned code_of(int weight, int unit) {
  return weight > 0 ? 1 : weight == 0 ? 0 : -weight == unit ? 2 : 3;
}

int largest_multiple(const WeightForm& form) { return form.ternary ? 1 : 2; }

// Partial sum of a channel of `rows22`.
int term(int code, int largest, int multiple) {
  return multiple > 0 ? multiple * (largest - code) : -multiple * code;
}

// Partial sum of a nibble of `rows22`: the low bits of two codes, then their high bits.
int pair_sum(unsigned codes, unsigned weights, int largest) {
  int sum = 0;
  for (int i = 0; i < 2; ++i) {
    const auto code = static_cast<int>((codes >> i & 1) | (codes >> (i + 1) & 2));
    sum += term(std::min(code, largest), largest, multiples[weights >> 2 * i & 3]);
  }
  return sum;
}

// Position of a channel in the words of 32 channels.
struct WeightPlace {
  std::int64_t byte;
  int shift;
};

WeightPlace place_of(Scheme scheme, std::int64_t channel) {
  if (scheme == Scheme::rows11) return {channel / 8, static_cast<int>(channel % 8)};
  const std::int64_t word = channel / 32 * 2 + channel / 2 % 2;
  return {word * 4 + channel % 32 / 8, static_cast<int>(channel / 4 % 2 * 4 + channel % 2 * 2)};
}

}  // namespace

std::int64_t most_row_terms(std::int64_t levels, const WeightForm& form) {
  return 65535 / (largest_row_code(levels) * largest_multiple(form));
}

const RowTable& row_table(Scheme scheme, std::int64_t levels) {
  // One for bits, and one for each largest code of `rows22`.
  static const auto tables = [] {
    std::array<RowTable, 4> all;
    for (std::size_t largest = 0; largest < all.size(); ++largest)
      for (unsigned byte = 0; byte < 256; ++byte)
        for (unsigned half = 0; half < 2; ++half)
          for (unsigned weights = 0; weights < 16; ++weights) {
            const unsigned codes = byte >> 4 * half & 15;
            all[largest].entries[byte][half][weights] = static_cast<std::uint8_t>(
                largest == 0 ? std::popcount(codes ^ weights)
                             : pair_sum(codes, weights, static_cast<int>(largest)));
          }
    return all;
  }();
  return scheme == Scheme::rows11 ? tables[0]
                                  : tables[static_cast<std::size_t>(largest_row_code(levels))];
}

int row_bytes_in_8_bits(Scheme scheme, std::int64_t levels, const WeightForm& form) {
  const std::int64_t nibble =
      scheme == Scheme::rows11 ? 4 : 2 * largest_row_code(levels) * largest_multiple(form);
  return static_cast<int>(255 / (2 * nibble));
}

void pack_rows(Scheme scheme, const Weights& weights, const WeightForm& form, const Runs& runs,
               const std::vector<PanelChannels>& panels, std::int64_t most_bytes,
               PackedWeights& to) {
  constexpr std::int64_t pair_channels = 2 * panel_channels;
  const bool bits = scheme == Scheme::rows11;
  const std::int64_t pixel = (weights.inner + 31) / 32 * (bits ? 4 : 8);  // bytes
  to.steps = static_cast<int>(runs.taps * pixel);
  to.panel = runs.count * to.steps * panel_channels;
  const auto pairs = (static_cast<std::int64_t>(panels.size()) + 1) / 2;
  to.bytes = room_for(pairs * 2 * to.panel, most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panels[p].count; ++lane) {
      const std::int64_t channel = panels[p].first + lane;
      const int unit =
          form.ternary ? form.units[static_cast<std::size_t>(channel)] : -form.set.front() / 2;
      std::byte* const first = to.bytes.data() + static_cast<std::int64_t>(p / 2) * 2 * to.panel +
                               static_cast<std::int64_t>(p % 2) * panel_channels + lane;
      for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
        const std::int8_t* const own = weights.of(channel, tap);
        for (std::int64_t c = 0; c < weights.inner; ++c) {
          const WeightPlace place = place_of(scheme, c);
          const unsigned code = bits ? (own[c] > 0 ? 1 : 0) : code_of(own[c], unit);
          first[(tap * pixel + place.byte) * pair_channels] |=
              static_cast<std::byte>(code << place.shift);
        }
      }
    }
}

}  // namespace anybit::lowbit
