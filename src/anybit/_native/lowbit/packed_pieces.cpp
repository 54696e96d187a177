// SPDX-License-Identifier: Apache-2.0
// Piecewise constant epilogues as packed buckets.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "piece_changes.hpp"

namespace anybit::lowbit {

namespace {

using Change = PieceChange;
using Int = std::numeric_limits<std::int32_t>;

// More buckets leave the caches. The compiler knows this number, and those below.
constexpr std::int64_t most_buckets = 2048;

// Distances are added to the lower 23 bits of an entry.
constexpr int distance_bits = 23;
constexpr std::int64_t most_distance = (1 << distance_bits) - 1;

// One of this many buckets may have several starts: fewer save no time, more cost too much.
constexpr std::int64_t few_searched = 512, many_searched = 64;

// The sums before or after the pivot by their distance from it.
struct Side {
  std::vector<Change> changes;
  std::int64_t end = 0;  // the largest distance
  int code = 0;          // next to the pivot

  int shift_of(std::int64_t buckets) const {
    int shift = 0;
    while (end >> shift >= buckets) ++shift;
    return shift;
  }

  // Calls use(bucket, change, several) for the buckets with changes: the last change, and whether
  // an entry cannot hold them. It holds one change by 1, or at the start of the bucket.
  template <class Use>
  void for_each_changed(int shift, Use&& use) const {
    for (auto at = changes.begin(), next = at; at != changes.end(); at = next) {
      const std::int64_t bucket = at->start >> shift;
      while (next != changes.end() && next->start >> shift == bucket) ++next;
      const bool is_plain = at->after == at->before + 1 || bucket << shift == at->start;
      use(bucket, *(next - 1), next - at > 1 || !is_plain);
    }
  }

  // Whether less than one of this many buckets needs a search.
  bool has_few_searched(std::int64_t buckets, std::int64_t one_of) const {
    const int shift = shift_of(buckets);
    std::int64_t searched = 0;
    for_each_changed(shift,
                     [&](std::int64_t, const Change&, bool several) { searched += several; });
    return searched * one_of <= end >> shift;
  }

  // Writes the entries, which are a panel apart. Returns whether some of them need a search.
  bool fill(std::int32_t* entries, std::int64_t buckets, int shift) const {
    const auto entry = [&](std::int64_t bucket) -> std::int32_t& {
      return entries[bucket * panel_channels];
    };
    bool searches = false;
    std::int64_t done = 0;
    int now = code;
    const auto fill_up_to = [&](std::int64_t bucket) {
      for (; done < bucket; ++done) entry(done) = now << distance_bits;
    };
    for_each_changed(shift, [&](std::int64_t bucket, const Change& change, bool several) {
      fill_up_to(bucket);
      if (several) {
        entry(done++) = Int::min(), searches = true;
      } else if (bucket << shift != change.start) {
        const std::int64_t carry = most_distance + 1 - change.start;
        entry(done++) = (change.before << distance_bits) + static_cast<std::int32_t>(carry);
      }
      now = change.after;
    });
    fill_up_to(buckets);
    return searches;
  }
};

// The sides of the smallest index of a channel.
struct Valley {
  std::int64_t pivot = 0;
  Side before, after;

  static std::optional<Valley> of(const PackedEpilogue& epilogue, std::int64_t channel) {
    const std::vector<Change> changes = changes_of(epilogue, channel);
    Valley valley;
    valley.before.code = valley.after.code = first_code(epilogue, channel);
    if (changes.empty()) return valley;
    const auto pivot = end_of_lowest(changes);
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

 private:
  // The change after the longest piece with the smallest index, or before the last piece.
  static std::vector<Change>::const_iterator end_of_lowest(const std::vector<Change>& changes) {
    auto lowest = changes.begin();
    const auto length = [&](std::vector<Change>::const_iterator end) {
      return end == changes.begin() ? Int::max() : end->start - (end - 1)->start;
    };
    for (auto at = changes.begin() + 1; at != changes.end(); ++at)
      if (at->before < lowest->before ||
          (at->before == lowest->before && length(at) > length(lowest)))
        lowest = at;
    return changes.back().after < lowest->before ? changes.end() - 1 : lowest;
  }
};

// Buckets of a side of all channels.
struct SideBuckets {
  std::int64_t count = 0;  // that sums reach; 0 if too many are needed
  std::int64_t most = 16;  // the next power of two, which determines the shift of a channel

  SideBuckets(const std::vector<Valley>& channels, Side Valley::* side) {
    const auto have_few_searched = [&](std::int64_t one_of) {
      return std::all_of(channels.begin(), channels.end(), [&](const Valley& own) {
        return (own.*side).has_few_searched(most, one_of);
      });
    };
    while (most < most_buckets && !have_few_searched(few_searched)) most *= 2;
    if (!have_few_searched(many_searched)) return;
    for (const Valley& own : channels)
      count = std::max(count, ((own.*side).end >> (own.*side).shift_of(most)) + 1);
  }
};

}  // namespace

void pack_pieces(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t most_bytes) {
  if (epilogue.kind != EpilogueKind::pieces) return;
  const std::int64_t padded = epilogue.thresholds.size() / most_pieces;
  std::vector<Valley> valleys;
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto own = Valley::of(epilogue, channel);
    if (!own) return;
    valleys.push_back(*own);
  }
  const SideBuckets before(valleys, &Valley::before), after(valleys, &Valley::after);
  const std::int64_t buckets = before.count + after.count;
  if (before.count == 0 || after.count == 0 || padded * buckets * 4 > most_bytes) return;
  epilogue.packed = {Aligned<std::int32_t>(padded * buckets), static_cast<int>(buckets)};
  epilogue.side_buckets = static_cast<int>(after.count);
  bool searches = false;
  epilogue.piece_panels.resize(static_cast<std::size_t>(padded / panel_channels));
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const Valley& own = valleys[static_cast<std::size_t>(channel)];
    const std::int64_t panel = channel / panel_channels, lane = channel % panel_channels;
    PiecePanel& to = epilogue.piece_panels[static_cast<std::size_t>(panel)];
    to.lows[lane] = static_cast<std::int32_t>(own.pivot - 1 - own.before.end);
    to.highs[lane] = static_cast<std::int32_t>(own.pivot + own.after.end);
    to.pivots[lane] = static_cast<std::int32_t>(own.pivot);
    const int shift = own.after.shift_of(after.most), other = own.before.shift_of(before.most);
    to.shifts[lane] = shift, to.more[lane] = other - shift;
    std::int32_t* const entries =
        epilogue.packed.entries.data() + panel * panel_channels * buckets + lane;
    searches |= own.after.fill(entries, after.count, shift);
    searches |= own.before.fill(entries + after.count * panel_channels, before.count, other);
  }
  if (!searches) epilogue.thresholds = {}, epilogue.piece_codes = {};
  epilogue.kind = EpilogueKind::packed_pieces;
}

}  // namespace anybit::lowbit
