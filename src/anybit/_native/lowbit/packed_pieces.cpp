// SPDX-License-Identifier: Apache-2.0
// Piecewise constant epilogues as packed buckets.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "epilogue.hpp"

namespace anybit::lowbit {

namespace {

// A sum from which on the index is another one.
struct Change {
  std::int64_t start = 0;
  int before = 0, after = 0;
};

using Int = std::numeric_limits<std::int32_t>;

// The index of the smallest sums. Starts at the ends of int32 are reached always, and never.
int first_code(const Epilogue& tail, std::int64_t channel) {
  const std::int32_t* const starts = tail.thresholds.data() + channel * most_pieces;
  const auto reached = std::upper_bound(starts, starts + most_pieces, Int::min()) - starts;
  return tail.piece_codes[channel * most_pieces + reached];
}

// The changes of a channel that some sums reach.
std::vector<Change> changes_of(const Epilogue& tail, std::int64_t channel) {
  const std::int32_t* const starts = tail.thresholds.data() + channel * most_pieces;
  const std::uint8_t* const codes = tail.piece_codes.data() + channel * most_pieces;
  std::vector<Change> changes;
  int before = first_code(tail, channel);
  for (std::int64_t i = 0; i < most_pieces - 1; ++i) {
    if (starts[i] == Int::min() || starts[i] == Int::max() || starts[i] == starts[i + 1]) continue;
    if (codes[i + 1] == before) continue;
    changes.push_back({starts[i], before, codes[i + 1]});
    before = codes[i + 1];
  }
  return changes;
}

// More buckets leave the caches. The compiler knows this number.
constexpr std::int64_t most_buckets = 2048;

// Distances are added to the lower 24 bits of an entry.
constexpr std::int64_t most_distance = (1 << 24) - 1;

// The sums before or after the pivot by their distance from it, with which the index rises.
struct Side {
  std::vector<Change> changes;
  std::int64_t end = 0;  // the largest distance
  int code = 0;          // next to the pivot

  int shift_of(std::int64_t buckets) const {
    int shift = 0;
    while (end >> shift >= buckets) ++shift;
    return shift;
  }

  // Whether each bucket has at most one change, by 1 or at its start.
  bool is_fine(std::int64_t buckets) const {
    const int shift = shift_of(buckets);
    std::int64_t last = -1;
    for (const Change& change : changes) {
      const std::int64_t bucket = change.start >> shift;
      const bool at_start = bucket << shift == change.start;
      if (bucket == last || (!at_start && change.after != change.before + 1)) return false;
      last = bucket;
    }
    return true;
  }

  // Writes the entries, which are a panel apart. A distance that reaches the change of its bucket
  // carries into the code.
  void fill(std::int32_t* entries, std::int64_t buckets, int shift) const {
    auto next = changes.begin();
    int now = code;
    for (std::int64_t bucket = 0; bucket < buckets; ++bucket, entries += panel_channels) {
      std::int64_t carry = 0;
      int before = now;
      if (next != changes.end() && next->start >> shift == bucket) {
        const bool at_start = bucket << shift == next->start;
        carry = at_start ? 0 : most_distance + 1 - next->start;
        now = next++->after;
        if (at_start) before = now;
      }
      *entries = static_cast<std::int32_t>((static_cast<std::uint32_t>(before) << 24) +
                                           static_cast<std::uint32_t>(carry));
    }
  }
};

// A channel whose index falls and then rises.
struct Valley {
  std::int64_t pivot = 0;
  Side before, after;

  static std::optional<Valley> of(const Epilogue& tail, std::int64_t channel) {
    const std::vector<Change> changes = changes_of(tail, channel);
    Valley valley;
    valley.before.code = valley.after.code = first_code(tail, channel);
    if (changes.empty()) return valley;
    const auto rises = [](const Change& change) { return change.after > change.before; };
    auto pivot = std::find_if(changes.begin(), changes.end(), rises);
    if (pivot == changes.end()) --pivot;
    if (!std::all_of(pivot + 1, changes.end(), rises)) return std::nullopt;
    valley.pivot = pivot->start;
    valley.before.code = pivot->before, valley.after.code = pivot->after;
    for (auto at = pivot; at != changes.begin();) {
      --at;
      valley.before.changes.push_back({pivot->start - at->start, at->after, at->before});
    }
    for (auto at = pivot + 1; at != changes.end(); ++at)
      valley.after.changes.push_back({at->start - pivot->start, at->before, at->after});
    for (Side* const side : {&valley.before, &valley.after}) {
      if (!side->changes.empty()) side->end = side->changes.back().start;
      if (side->end > most_distance) return std::nullopt;
    }
    return valley;
  }
};

// Buckets of a side of all channels.
struct SideBuckets {
  std::int64_t count = 0;  // that sums reach; 0 if too many are needed
  std::int64_t most = 16;  // the next power of two, which determines the shift of a channel

  SideBuckets(const std::vector<Valley>& channels, Side Valley::* side) {
    const auto is_coarse = [&](const Valley& own) { return !(own.*side).is_fine(most); };
    while (std::any_of(channels.begin(), channels.end(), is_coarse))
      if ((most *= 2) > most_buckets) return;
    for (const Valley& own : channels)
      count = std::max(count, ((own.*side).end >> (own.*side).shift_of(most)) + 1);
  }
};

}  // namespace

void pack_pieces(Epilogue& tail, std::int64_t channels, std::int64_t most_bytes) {
  if (tail.kind != TailKind::pieces) return;
  const std::int64_t padded = tail.thresholds.size() / most_pieces;
  std::vector<Valley> valleys;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto own = Valley::of(tail, channel);
    if (!own) return;
    valleys.push_back(*own);
  }
  const SideBuckets before(valleys, &Valley::before), after(valleys, &Valley::after);
  const std::int64_t buckets = before.count + after.count;
  if (before.count == 0 || after.count == 0 || padded * buckets * 4 > most_bytes) return;
  tail.packed = {Aligned<std::int32_t>(padded * buckets), static_cast<int>(buckets)};
  tail.side_buckets = static_cast<int>(after.count);
  tail.piece_panels.resize(static_cast<std::size_t>(padded / panel_channels));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const Valley& own = valleys[static_cast<std::size_t>(channel)];
    const std::int64_t panel = channel / panel_channels, lane = channel % panel_channels;
    PiecePanel& to = tail.piece_panels[static_cast<std::size_t>(panel)];
    to.lows[lane] = static_cast<std::int32_t>(own.pivot - 1 - own.before.end);
    to.highs[lane] = static_cast<std::int32_t>(own.pivot + own.after.end);
    to.pivots[lane] = static_cast<std::int32_t>(own.pivot);
    const int shift = own.after.shift_of(after.most), other = own.before.shift_of(before.most);
    to.shifts[lane] = shift, to.more[lane] = other - shift;
    std::int32_t* const entries =
        tail.packed.entries.data() + panel * panel_channels * buckets + lane;
    own.after.fill(entries, after.count, shift);
    own.before.fill(entries + after.count * panel_channels, before.count, other);
  }
  tail.thresholds = {}, tail.piece_codes = {};
  tail.kind = TailKind::packed_pieces;
}

}  // namespace anybit::lowbit
