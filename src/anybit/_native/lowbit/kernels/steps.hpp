// SPDX-License-Identifier: Apache-2.0
// Epilogues in float32 arithmetic, step by step as in the graph.
#pragma once
#include "_native/lowbit/exponential.hpp"
#include "epilogues.hpp"

namespace {

using anybit::lowbit::EpilogueStep;
using anybit::lowbit::most_block_pixels;
using anybit::lowbit::most_step_arrays;
using anybit::lowbit::Operation;

// Panels per step: dispatching a step takes longer than computing it for one panel.
#if defined(__AVX512F__)
template <bool keeps>
constexpr int step_panels = 8;
#else
// Their values fill half of the registers.
template <bool keeps>
constexpr int step_panels = 8 / register_count;
#endif

// Values of some panels, and saved copies of them. Steps that keep none need no registers for
// these.
template <bool keeps_, int panels_ = step_panels<keeps_>>
struct Stepped {
  static constexpr bool keeps = keeps_;
  static constexpr int panels = panels_;
  Reals y[panels], kept[keeps ? panels : 1];
};

// y > c ? y : c, or NaN if y is.
[[gnu::always_inline]] inline Reals maximum(const Reals& y, const Reals& c) {
#if defined(__AVX512F__)
  const __m512 x = y.parts[0];
  return {
      FloatRegister(_mm512_mask_max_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x, c.parts[0]))};
#elif defined(__AVX2__)
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    const __m256 x = y.parts[i];
    return FloatRegister(
        _mm256_blendv_ps(_mm256_max_ps(x, c.parts[i]), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  });
#else
  return selected((y > c) | (y != y), y, c);
#endif
}

// y < c ? y : c, or NaN if y is.
[[gnu::always_inline]] inline Reals minimum(const Reals& y, const Reals& c) {
#if defined(__AVX512F__)
  const __m512 x = y.parts[0];
  return {
      FloatRegister(_mm512_mask_min_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x, c.parts[0]))};
#elif defined(__AVX2__)
  return map_registers<Reals>([&](int i) __attribute__((always_inline)) {
    const __m256 x = y.parts[i];
    return FloatRegister(
        _mm256_blendv_ps(_mm256_min_ps(x, c.parts[i]), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  });
#else
  return selected((y < c) | (y != y), y, c);
#endif
}

// Applies a step; `operand(i)` returns the operands of panel i.
template <class Values, class Operand>
[[gnu::always_inline]] inline void apply(Operation operation, Values& at, Operand&& operand) {
  constexpr int panels = Values::panels;
  const auto apply_to_all = [&](auto&& result) __attribute__((always_inline)) {
    repeat<panels>([&](int i)
                       __attribute__((always_inline)) { at.y[i] = result(at.y[i], operand(i)); });
  };
  const auto kept = [&](auto&& result) __attribute__((always_inline)) {
    if constexpr (Values::keeps)
      repeat<panels>([&](int i) __attribute__((always_inline)) { result(at.y[i], at.kept[i]); });
  };
  switch (operation) {
    case Operation::add:
      return apply_to_all([](const Reals& y, const Reals& c) { return y + c; });
    case Operation::subtract:
      return apply_to_all([](const Reals& y, const Reals& c) { return y - c; });
    case Operation::subtract_from:
      return apply_to_all([](const Reals& y, const Reals& c) { return c - y; });
    case Operation::multiply:
      return apply_to_all([](const Reals& y, const Reals& c) { return y * c; });
    case Operation::divide:
      return apply_to_all([](const Reals& y, const Reals& c) { return y / c; });
    case Operation::maximum:
      return apply_to_all([](const Reals& y, const Reals& c) { return maximum(y, c); });
    case Operation::minimum:
      return apply_to_all([](const Reals& y, const Reals& c) { return minimum(y, c); });
    case Operation::keep:
      return kept([](const Reals& y, Reals& kept) { kept = y; });
    case Operation::add_kept:
      return kept([](Reals& y, const Reals& kept) { y = y + kept; });
    case Operation::multiply_kept:
      return kept([](Reals& y, const Reals& kept) { y = y * kept; });
    case Operation::sigmoid:
      return kept([](Reals& y, const Reals&) { y = sigmoid_of(y); });
    case Operation::gelu:
      return kept([](Reals& y, const Reals&) { y = gelu_of(y); });
  }
}

// Reads the operands of a panel; of the first `count` channels where the level masks loads.
[[gnu::always_inline]] inline Reals read_first(const float* at, int count) {
#if defined(__AVX512F__)
  return {FloatRegister(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), at))};
#else
  static_cast<void>(count);
  return read<Reals>(at);
#endif
}

// Number of channels of a panel.
[[gnu::always_inline]] inline int here(const EpilogueBlock& at, int lane) {
  return at.channels - lane < lane_count ? at.channels - lane : lane_count;
}

// Computes the steps of panels that are in registers. `pixel_of` and `lane_of` return the pixel and
// the first channel of each; all are at the same channel if they share constants.
template <Settling settling, bool shares, class Values, class Pixel, class Lane>
[[gnu::always_inline]] inline void compute_steps(const EpilogueBlock& at, Values& values,
                                                 Pixel&& pixel_of, Lane&& lane_of) {
  repeat<Values::panels>([&](int i) __attribute__((always_inline)) {
    values.y[i] = to_reals(accumulators<settling>(at, pixel_of(i), lane_of(i))) *
                  read<Reals>(at.gains + lane_of(i));
    if constexpr (Values::keeps) values.kept[i] = broadcast(0.0f);
  });
  for (int i = 0; i < at.step_count; ++i) {
    const EpilogueStep step = at.steps[i];
    const auto array_of = [&](int k) __attribute__((always_inline)) {
      return at.arrays[step.array][pixel_of(k)];
    };
    if (step.array >= 0 && step.one_channel) {
      apply(step.operation, values,
            [&](int k) __attribute__((always_inline)) { return broadcast(*array_of(k)); });
    } else if (step.array >= 0) {
      apply(step.operation, values, [&](int k) __attribute__((always_inline)) {
        return read_first(array_of(k) + at.first_channel + lane_of(k), here(at, lane_of(k)));
      });
    } else if constexpr (shares) {
      const auto constants = read<Reals>(step.operands + at.first_channel + lane_of(0));
      apply(step.operation, values, [&](int) __attribute__((always_inline)) { return constants; });
    } else {
      apply(step.operation, values, [&](int k) __attribute__((always_inline)) {
        return read<Reals>(step.operands + at.first_channel + lane_of(k));
      });
    }
  }
}

// Calls store(pixel, lane, y) for all panels of all pixels, which are as many as fit the registers,
// or more. The last ones may be computed twice.
template <bool keeps, Settling settling, class Store>
[[gnu::always_inline]] inline void each_of_many(const EpilogueBlock& block, Store&& store) {
  constexpr int together = Stepped<keeps>::panels;
  const EpilogueBlock at = block;
  for (int lane = 0; lane < at.channels; lane += lane_count)
    for (int next = 0; next < at.count; next += together) {
      const int first = next + together <= at.count ? next : at.count - together;
      Stepped<keeps> stepped;
      compute_steps<settling, true>(
          at, stepped, [=](int i) __attribute__((always_inline)) { return first + i; },
          [=](int) __attribute__((always_inline)) { return lane; });
      repeat<together>(
          [&](int i) __attribute__((always_inline)) { store(first + i, lane, stepped.y[i]); });
    }
}

// Pixel and first channel of a panel, where few pixels have `panels` of them each.
struct FewPanels {
  static constexpr int most = 32;
  std::uint8_t pixels[chunk_channels / lane_count + 1][most] = {};
  std::uint8_t lanes[chunk_channels / lane_count + 1][most] = {};
  constexpr FewPanels() {
    for (int panels = 1; panels <= chunk_channels / lane_count; ++panels)
      for (int i = 0; i < most; ++i) {
        pixels[panels][i] = static_cast<std::uint8_t>(i / panels);
        lanes[panels][i] = static_cast<std::uint8_t>(i % panels * lane_count);
      }
  }
};
constexpr FewPanels few_panels;

// The same of few pixels: several panels of each.
template <bool keeps, Settling settling, class Store>
[[gnu::always_inline]] inline void each_of_few(const EpilogueBlock& block, Store&& store) {
  constexpr int together = Stepped<keeps>::panels;
  static_assert((together - 1) * (chunk_channels / lane_count) <= FewPanels::most);
  const EpilogueBlock at = block;
  const int panels = (at.channels + lane_count - 1) / lane_count, all = at.count * panels;
  for (int first = 0; first < all; first += together) {
    const auto place = [&](int i) __attribute__((always_inline)) {  // repeats the last panel
      return first + i < all ? first + i : all - 1;
    };
    const auto pixel_of = [&](int i) __attribute__((always_inline)) {
      return static_cast<int>(few_panels.pixels[panels][place(i)]);
    };
    const auto lane_of = [&](int i) __attribute__((always_inline)) {
      return static_cast<int>(few_panels.lanes[panels][place(i)]);
    };
    Stepped<keeps> stepped;
    compute_steps<settling, false>(at, stepped, pixel_of, lane_of);
    repeat<together>([&](int i) __attribute__((always_inline)) {
      if (first + i < all) store(pixel_of(i), lane_of(i), stepped.y[i]);
    });
  }
}

template <bool keeps, class Store>
[[gnu::always_inline]] inline void each_kept(const EpilogueBlock& at, Store&& store) {
  if (at.count < Stepped<keeps>::panels) each_of_few<keeps, Settling::general>(at, store);
  else if (at.settling == Settling::general) each_of_many<keeps, Settling::general>(at, store);
  else if (at.settling == Settling::plain) each_of_many<keeps, Settling::plain>(at, store);
  else each_of_many<keeps, Settling::bare>(at, store);
}

#if !defined(__AVX512F__)
bool reads_arrays(const EpilogueBlock& at) {
  for (int i = 0; i < at.step_count; ++i)
    if (at.steps[i].array >= 0 && !at.steps[i].one_channel) return true;
  return false;
}

// A block in two: channels that fill panels, and the last ones, whose arrays are copied. Loads of
// whole registers may reach into no page, and masked loads of AVX2 fault there on processors of
// AMD.
class SplitBlock {
 public:
  [[gnu::noinline]] void split(const EpilogueBlock& at, int whole) {
    blocks_[0] = blocks_[1] = at;
    blocks_[0].channels = whole;
    EpilogueBlock& last = blocks_[1];
    last.channels = at.channels - whole;
    last.first_channel = at.first_channel + whole;
    last.sums += whole, last.gains += whole;
    if (last.scales != nullptr) last.scales += whole;
    for (int i = 0; i < at.step_count; ++i)
      if (at.steps[i].array >= 0 && !at.steps[i].one_channel) copy_array(at, at.steps[i].array);
  }
  const EpilogueBlock& operator[](int part) const { return blocks_[part]; }

 private:
  void copy_array(const EpilogueBlock& at, int array) {
    EpilogueBlock& last = blocks_[1];
    for (int pixel = 0; pixel < at.count; ++pixel) {
      float* const row = room_[array][pixel];
      write(row, broadcast(0.0f));
      copy_few<float>(row, at.arrays[array][pixel] + last.first_channel, last.channels);
      rows_[array][pixel] = row - last.first_channel;
    }
    last.arrays[array] = rows_[array];
  }

  EpilogueBlock blocks_[2];
  const float* rows_[most_step_arrays][most_block_pixels];
  float room_[most_step_arrays][most_block_pixels][lane_count];
};
#endif

template <class Store>
[[gnu::always_inline]] inline void each_stepped(const EpilogueBlock& at, Store&& store) {
#if defined(__AVX512F__)
  each_kept<true>(at, store);  // there are registers for saved copies
#else
  bool keeps = false;
  for (int i = 0; i < at.step_count; ++i) keeps |= at.steps[i].operation >= Operation::keep;
  const int whole = at.channels / lane_count * lane_count;
  SplitBlock split;
  const int blocks = whole < at.channels && reads_arrays(at) ? 2 : 1;
  if (blocks == 2) split.split(at, whole);
  for (int i = 0; i < blocks; ++i) {
    const EpilogueBlock& block = blocks == 2 ? split[i] : at;
    const int first = i * whole;
    const auto store_here = [&](int pixel, int lane, const Reals& y)
                                __attribute__((always_inline)) { store(pixel, first + lane, y); };
    if (keeps) each_kept<true>(block, store_here);
    else each_kept<false>(block, store_here);
  }
#endif
}

// Stores adjacent pixels channel by channel. Lines of different channels often share a cache set:
// all pixels of four channels are stored before the next ones.
[[gnu::noinline]] void write_lines(const EpilogueBlock& at, const float* from, float* to,
                                   int pixels) {
  const int whole = pixels / 4 * 4;
  int channel = 0;
  for (; channel + 4 <= at.channels; channel += 4)
    for (int pixel = 0; pixel < whole; pixel += 4)
      transpose_four(from + pixel * chunk_channels + channel, chunk_channels,
                     to + channel * at.float_channel + pixel, at.float_channel);
  const auto copy = [&](int first_channel, int first_pixel) __attribute__((always_inline)) {
    for (int c = first_channel; c < at.channels; ++c)
      for (int pixel = first_pixel; pixel < pixels; ++pixel)
        to[c * at.float_channel + pixel] = from[pixel * chunk_channels + c];
  };
  copy(channel, 0);
  if (whole < pixels) copy(0, whole);
}

void arithmetic(const EpilogueBlock& at) {
  if (at.float_channel == 1)
    return each_stepped(at,
                        [&](int pixel, int lane, const Reals& y) __attribute__((always_inline)) {
                          write_some(at.floats[pixel] + lane, y, here(at, lane));
                        });
  alignas(64) float room[most_block_pixels * chunk_channels];
  each_stepped(at, [&](int pixel, int lane, const Reals& y) __attribute__((always_inline)) {
    write(room + pixel * chunk_channels + lane, y);
  });
  for (int pixel = 0, next; pixel < at.count; pixel = next) {
    for (next = pixel + 1; next < at.count; ++next)
      if (at.floats[next] != at.floats[pixel] + (next - pixel)) break;
    write_lines(at, room + pixel * chunk_channels, at.floats[pixel], next - pixel);
  }
}

void rounded(const EpilogueBlock& at) {
  const Reals bottom = broadcast(-static_cast<float>(at.shift));
  const Reals top = bottom + broadcast(static_cast<float>(at.levels - 1));
  alignas(64) std::uint8_t room[most_block_pixels][chunk_channels];
  const bool in_bytes = at.coding == Coding::bytes;
  each_stepped(at, [&](int pixel, int lane, const Reals& stepped) __attribute__((always_inline)) {
    const ByteLanes indices = narrowed(nearest(clamped(stepped, bottom, top), at.shift));
    if (!in_bytes) return write(room[pixel] + lane, indices);
    const int channels = here(at, lane);
    if (channels == lane_count) write(at.targets[pixel] + lane, indices);
    else copy_few<std::byte>(at.targets[pixel] + lane, &indices, channels);
  });
  if (in_bytes) return;
  for (int pixel = 0; pixel < at.count; ++pixel)
    anybit::lowbit::put_run(at.coding, at.targets[pixel], 0, room[pixel], at.channels);
}

// Replays the steps for one panel.
[[gnu::noinline]] void replay_panel(const EpilogueBlock& at, const std::int32_t* sums, int lane,
                                    std::int32_t* indices) {
  Stepped<true, 1> stepped{{to_reals(read<Lanes>(sums)) * read<Reals>(at.gains + lane)},
                           {broadcast(0.0f)}};
  for (int i = 0; i < at.step_count; ++i) {
    const EpilogueStep& step = at.steps[i];
    apply(step.operation, stepped, [&](int) __attribute__((always_inline)) {
      return read<Reals>(step.operands + at.first_channel + lane);
    });
  }
  const Reals bottom = broadcast(-static_cast<float>(at.shift));
  const Reals top = bottom + broadcast(static_cast<float>(at.levels - 1));
  write(indices, nearest(clamped(stepped.y[0], bottom, top), at.shift));
}

// Whether some indices may be next to a tie.
#if defined(__AVX512F__)
struct Doubts {
  std::uint32_t any = 0;
  [[gnu::always_inline]] void add(const Lanes& distance, const Lanes& limit) {
    any |= _mm512_cmpgt_epi32_mask(__m512i(distance.parts[0]), __m512i(limit.parts[0]));
  }
  [[gnu::always_inline]] bool exist() const { return any != 0; }
};
#else
struct Doubts {
  Lanes any = broadcast(0);
  [[gnu::always_inline]] void add(const Lanes& distance, const Lanes& limit) {
    any = any | (distance > limit);
  }
  [[gnu::always_inline]] bool exist() const { return has_negative(any); }
};
#endif

// Constants of the lines of a panel.
struct LinePanel {
  Reals slopes, offsets;
  Lanes limits;
  [[gnu::always_inline]] LinePanel(const EpilogueBlock& at, int lane)
      : slopes(read<Reals>(at.slopes + lane)),
        offsets(read<Reals>(at.offsets + lane)),
        limits(read<Lanes>(at.limits + lane)) {}
};

// The distance of y from the nearest integer, as the bits of a number.
[[gnu::always_inline]] inline Lanes distance_from(const Lanes& index, const Reals& y) {
#if defined(__AVX512DQ__)
  static_cast<void>(index);
  const Reals distance = {FloatRegister(_mm512_reduce_ps(y.parts[0], _MM_FROUND_TO_NEAREST_INT))};
#else
  const Reals distance = y - to_reals(index);
#endif
  return bits_of(distance) & broadcast(0x7fffffff);
}

// Returns the indices of a panel by lines, and notes those that may be next to a tie.
template <bool saturates = false>
[[gnu::always_inline]] inline Lanes line_indices(const EpilogueBlock& at, const LinePanel& line,
                                                 const Lanes& sum, int lane, Doubts& doubts) {
  Reals y = to_reals(sum) * line.slopes;
  y = y + line.offsets;
#if defined(ANYBIT_PACKING_SATURATES)
  if constexpr (saturates) {
    const Lanes index = rounded_to_lanes(y);
    doubts.add(distance_from(index, y), line.limits);
    return index;
  }
#endif
  y = clamped(y, read<Reals>(at.bottoms + lane), read<Reals>(at.tops + lane));
  const Reals high = raised(y);
  // Numbers that are not negative compare as their bits do.
  doubts.add(bits_of(y - (high - broadcast(raise))) & broadcast(0x7fffffff), line.limits);
  return index_of(high);
}

template <Settling settling>
[[gnu::noinline]] void replay_doubtful(const EpilogueBlock& at, int pixel) {
  store_pixel(at, pixel, has_whole_bytes(at), [&](int, int lane) __attribute__((always_inline)) {
    const Lanes sum = accumulators<settling>(at, pixel, lane);
    Doubts doubts;
    const Lanes index = line_indices(at, {at, lane}, sum, lane, doubts);
    if (!doubts.exist()) return index;
    alignas(64) std::int32_t sums[lane_count], indices[lane_count];
    write(sums, sum);
    replay_panel(at, sums, lane, indices);
    return read<Lanes>(indices);
  });
}

#if defined(__AVX512F__)
// Registers hold the constants of all panels of a chunk.
template <Settling settling, bool saturates>
[[gnu::always_inline]] inline void lines_of_whole_chunks(const EpilogueBlock& at) {
  constexpr int panels = chunk_channels / lane_count;
  const LinePanel lines[panels] = {
      {at, 0}, {at, lane_count}, {at, 2 * lane_count}, {at, 3 * lane_count}};
  for (int pixel = 0; pixel < at.count; ++pixel) {
    Doubts doubts;
    Lanes indices[panels];
    repeat<panels>([&](int i) __attribute__((always_inline)) {
      const Lanes sum = accumulators<settling>(at, pixel, i * lane_count);
      indices[i] = line_indices<saturates>(at, lines[i], sum, i * lane_count, doubts);
    });
    write_narrowed(at.targets[pixel], indices);
    if (doubts.exist()) replay_doubtful<settling>(at, pixel);
  }
}
#endif

// Most pixels have no number that may be next to a tie.
template <Settling settling, bool saturates = false>
void some_rounded_lines(const EpilogueBlock& block) {
  const EpilogueBlock at = block;
  const bool whole = has_whole_bytes(at);
#if defined(__AVX512F__)
  if (whole) return lines_of_whole_chunks<settling, saturates>(at);
#endif
  for (int pixel = 0; pixel < at.count; ++pixel) {
    Doubts doubts;
    store_pixel(at, pixel, whole, [&](int, int lane) __attribute__((always_inline)) {
      const Lanes sum = accumulators<settling>(at, pixel, lane);
      return line_indices<saturates>(at, {at, lane}, sum, lane, doubts);
    });
    if (doubts.exist()) replay_doubtful<settling>(at, pixel);
  }
}

void rounded_lines(const EpilogueBlock& at) {
#if defined(ANYBIT_PACKING_SATURATES)
  if (at.saturates) {
    if (at.settling == Settling::bare) return some_rounded_lines<Settling::bare, true>(at);
    if (at.settling == Settling::plain) return some_rounded_lines<Settling::plain, true>(at);
    return some_rounded_lines<Settling::general, true>(at);
  }
#endif
  if (at.settling == Settling::bare) some_rounded_lines<Settling::bare>(at);
  else if (at.settling == Settling::plain) some_rounded_lines<Settling::plain>(at);
  else some_rounded_lines<Settling::general>(at);
}

}  // namespace
