// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <bit>

namespace anybit::lowbit {

namespace {

// Largest partial sum of a channel.
constexpr int largest_term = 1;

}  // namespace

bool rows_hold(Scheme, std::int64_t terms) { return terms * largest_term <= 65535; }

int fill_rows(Scheme, RowTable& table) {
  int largest = 0;
  for (unsigned code = 0; code < 16; ++code)
    for (unsigned weight = 0; weight < 16; ++weight) {
      const int sum = std::popcount(code ^ weight);
      table.entries[code][weight] = static_cast<std::uint8_t>(sum);
      largest = std::max(largest, sum);
    }
  return 255 / (2 * largest);
}

void pack_rows(Scheme, const Weights& weights, const WeightForm&, const Runs& runs,
               const std::vector<PanelChannels>& panels, std::int64_t most_bytes,
               PackedWeights& to) {
  constexpr std::int64_t pair_channels = 2 * panel_channels;
  const std::int64_t pixel = (weights.inner + 31) / 32 * 4;  // bytes
  to.steps = static_cast<int>(runs.taps * pixel);
  to.panel = runs.count * to.steps * panel_channels;
  const auto pairs = (static_cast<std::int64_t>(panels.size()) + 1) / 2;
  to.bytes = room_for(pairs * 2 * to.panel, most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panels[p].count; ++lane) {
      std::byte* const first = to.bytes.data() + static_cast<std::int64_t>(p / 2) * 2 * to.panel +
                               static_cast<std::int64_t>(p % 2) * panel_channels + lane;
      for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
        const std::int8_t* const own = weights.of(panels[p].first + lane, tap);
        for (std::int64_t c = 0; c < weights.inner; ++c)
          if (own[c] > 0)
            first[(tap * pixel + c / 8) * pair_channels] |= static_cast<std::byte>(1 << c % 8);
      }
    }
}

}  // namespace anybit::lowbit
