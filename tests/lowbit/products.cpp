// SPDX-License-Identifier: Apache-2.0
// Products of every kind at every level that this processor runs, against a loop over integers:
//   products test [SEED [COUNT]]      random layers, odd sizes, all tails
//   products time LEVEL [FILTER]      some layers of known networks
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "_native/isa/levels.hpp"
#include "_native/lowbit/product.hpp"

namespace {

using anybit::Error;
using anybit::Level;
using anybit::name_of;
using anybit::select_level;
using anybit::selected_level;
using namespace anybit::lowbit;

std::mt19937 random_bits(1);

std::int64_t number(std::int64_t lowest, std::int64_t highest) {
  return std::uniform_int_distribution<std::int64_t>(lowest, highest)(random_bits);
}

template <class T>
T one_of(std::initializer_list<T> values) {
  return values.begin()[number(0, static_cast<std::int64_t>(values.size()) - 1)];
}

struct Layer {
  Tensor source{}, target{};
  Product product{};
  std::vector<std::uint8_t> bits;
  std::vector<std::int32_t> values, integers[2];
  std::vector<float> floats[3];
  std::vector<std::uint8_t> entries;
  std::vector<std::int8_t> weights;  // as the bits say
  std::int64_t rows = 1;

  ProductTask task() const { return {&product, source, target}; }

  void fit_target() {
    const Window& w = product.window;
    target.height =
        (source.height + w.pad_top + w.pad_bottom - (w.kernel_height - 1) * w.dilation_height - 1) /
            w.stride_height +
        1;
    target.width =
        (source.width + w.pad_left + w.pad_right - (w.kernel_width - 1) * w.dilation_width - 1) /
            w.stride_width +
        1;
  }

  void fill_weights() {
    const std::int64_t count = target.channels * product.window.kernel_height *
                               product.window.kernel_width * source.channels / product.groups;
    bits.assign(static_cast<std::size_t>((count * product.weight_bits + 7) / 8), 0);
    std::size_t place = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto index = number(0, static_cast<std::int64_t>(values.size()) - 1);
      weights.push_back(static_cast<std::int8_t>(values[static_cast<std::size_t>(index)]));
      for (int bit = 0; bit < product.weight_bits; ++bit, ++place)
        bits[place / 8] |= static_cast<std::uint8_t>((index >> bit & 1) << place % 8);
    }
    product.weights = bits;
    product.values = values;
  }

  std::int64_t sum(const std::uint8_t* indices, std::int64_t row, std::int64_t y, std::int64_t x,
                   std::int64_t channel) const {
    const Window& w = product.window;
    const std::int64_t inner = source.channels / product.groups;
    const std::int64_t first = channel / (target.channels / product.groups) * inner;
    const std::int8_t* weight =
        &weights[static_cast<std::size_t>(channel * w.kernel_height * w.kernel_width * inner)];
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < w.kernel_height; ++i)
      for (std::int64_t j = 0; j < w.kernel_width; ++j, weight += inner) {
        const std::int64_t v = y * w.stride_height + i * w.dilation_height - w.pad_top;
        const std::int64_t u = x * w.stride_width + j * w.dilation_width - w.pad_left;
        if (v < 0 || v >= source.height || u < 0 || u >= source.width) continue;
        const std::uint8_t* const pixel =
            indices + ((row * source.height + v) * source.width + u) * source.channels + first;
        for (std::int64_t c = 0; c < inner; ++c)
          sum += (source.lowest + source.step * pixel[c]) * weight[c];
      }
    return sum;
  }
};

constexpr std::int64_t reach = 1 << 22;  // no accumulator of the tests lies beyond

void random_weights(Layer& at) {
  at.product.weight_bits = number(1, 8);
  const std::int64_t most = std::int64_t{1} << at.product.weight_bits;
  const auto kind = number(0, 5);
  if (kind == 0) at.values = {-1, 1}, at.product.weight_bits = 1;
  else if (kind == 1) at.values = {-1, 0, 1}, at.product.weight_bits = 2;
  else if (kind == 2) at.values = {0, 1, -2, -1}, at.product.weight_bits = 2;
  else if (kind == 3) at.values = {-3, 3}, at.product.weight_bits = 1;
  else
    for (std::int64_t i = 0; i < most; ++i)
      at.values.push_back(static_cast<std::int32_t>(
          kind == 4 ? i - most / 2 : one_of<std::int64_t>({number(-128, 127), -128, 127})));
}

void random_codes(Tensor& tensor) {
  tensor.levels = one_of<std::int64_t>({2, 2, 2, 3, 3, 4, 4, 8, 15, 16, 31, 128, 256});
  tensor.step = one_of<std::int64_t>({1, 1, 2, 3});
  tensor.lowest = one_of<std::int64_t>({0, 0, -1, -tensor.levels / 2, 5});
  if (tensor.levels == 2 && number(0, 1) == 0) tensor.lowest = -1, tensor.step = 2;
  if (tensor.levels == 3 && number(0, 1) == 0) tensor.lowest = -1, tensor.step = 1;
}

void random_tail(Layer& at, const std::vector<std::int64_t>& sums) {
  const auto channels = static_cast<std::size_t>(at.target.channels);
  const auto some_sum = [&] {
    return static_cast<std::int32_t>(
        sums[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(sums.size()) - 1))]);
  };
  const auto kind = number(0, 3);
  at.target.levels = one_of<std::int64_t>({2, 2, 3, 4, 4, 7, 16, 17, 18, 100, 256});
  if (kind == 0) {
    // Those of an ordinary quantizer lie at equal distances.
    const bool even = number(0, 1) == 0;
    const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
    const auto spread = static_cast<double>(*most - *least);
    for (std::size_t c = 0; c < channels; ++c) {
      std::vector<std::int32_t> own;
      const std::int32_t direction = one_of({1, -1}), some = some_sum() / 2;
      for (std::int64_t i = 1; i < at.target.levels; ++i)
        own.push_back(one_of({direction * some_sum(), some_sum() + 1, INT32_MAX, INT32_MIN,
                              direction * some_sum(), direction * some_sum()}));
      if (even) {
        const double slope = static_cast<double>(at.target.levels) / (spread + 1);
        for (std::int64_t i = 1; i < at.target.levels; ++i)
          own[static_cast<std::size_t>(i - 1)] = static_cast<std::int32_t>(
              std::ceil((static_cast<double>(i) - 0.5) / slope + static_cast<double>(some)));
      }
      std::sort(own.begin(), own.end());
      at.integers[0].push_back(direction);
      at.integers[1].insert(at.integers[1].end(), own.begin(), own.end());
    }
    at.product.tail = Thresholds{at.integers[0], at.integers[1]};
  } else if (kind == 1) {
    for (std::size_t c = 0; c < channels; ++c) {
      at.floats[0].push_back(one_of({0.5f, -0.25f, 0.0113f, 0.0f, 3e38f, -1e-30f}));
      at.floats[1].push_back(one_of({0.5f, 0.0f, -7.3f, 12.0f, -3e38f}));
    }
    at.product.tail = Affine{at.floats[0], at.floats[1]};
  } else if (kind == 2) {
    const std::int64_t lowest = *std::min_element(sums.begin(), sums.end());
    const std::int64_t each = *std::max_element(sums.begin(), sums.end()) - lowest + 1;
    if (each * at.target.channels < 1 << 22) {
      at.integers[0].assign(channels, static_cast<std::int32_t>(lowest));
      for (std::int64_t i = 0; i < each * at.target.channels; ++i)
        at.entries.push_back(static_cast<std::uint8_t>(number(0, at.target.levels - 1)));
      at.product.tail = Table{at.integers[0], at.entries};
      return;
    }
  }
  if (kind >= 2) {
    for (std::size_t c = 0; c < channels; ++c)
      at.floats[0].push_back(one_of({0.1f, 1.0f, -2.5f})), at.floats[1].push_back(0.3f * c);
    at.floats[2] = {1.5f};
    Arithmetic tail{at.floats[0], {}};
    for (std::int64_t i = number(0, 7); i > 0; --i)
      tail.steps.push_back(
          {number(0, 6), number(0, 1) == 0 ? Floats(at.floats[1]) : Floats(at.floats[2])});
    at.product.tail = tail;
  }
}

void random_layer(Layer& at) {
  Window& w = at.product.window;
  at.rows = number(0, 9) == 0 ? 0 : number(1, 4);
  const bool dense = number(0, 3) == 0;
  w.kernel_height = dense ? 1 : number(1, 3), w.kernel_width = dense ? 1 : number(1, 4);
  w.stride_height = number(1, 2), w.stride_width = number(1, 3);
  w.dilation_height = number(1, 2), w.dilation_width = one_of<std::int64_t>({1, 1, 2});
  if (!dense && number(0, 1) == 0)
    w.pad_top = number(0, 3), w.pad_left = number(0, 3), w.pad_bottom = number(0, 3),
    w.pad_right = number(0, 3);
  at.source.height = dense ? 1 : number(7, 12), at.source.width = dense ? 1 : number(9, 14);
  at.product.groups = one_of<std::int64_t>({1, 1, 1, 1, 2, 3});
  at.source.channels =
      at.product.groups * one_of<std::int64_t>({1, 2, 3, 4, 16, 31, 32, 33, 64, 96});
  at.target.channels = at.product.groups * one_of<std::int64_t>({1, 2, 15, 16, 17, 32, 48, 70});
  if (number(0, 7) == 0) {
    at.source.channels = at.product.groups = at.target.channels =
        one_of<std::int64_t>({2, 16, 37, 64, 81});
  }
  if (dense) at.source.channels *= at.product.groups == 1 ? one_of<std::int64_t>({1, 9}) : 1;
  random_codes(at.source);
  random_weights(at);
  at.fit_target();
  at.fill_weights();
}

float after(Operation operation, float y, float c) {
  switch (operation) {
    case Operation::add:
      return y + c;
    case Operation::subtract:
      return y - c;
    case Operation::subtract_from:
      return c - y;
    case Operation::multiply:
      return y * c;
    case Operation::divide:
      return y / c;
    case Operation::maximum:
      return y > c || std::isnan(y) ? y : c;
    case Operation::minimum:
      return y < c || std::isnan(y) ? y : c;
  }
  return 0;
}

int index_of(const Layer& at, std::int64_t sum, std::size_t channel) {
  if (const auto* t = std::get_if<Thresholds>(&at.product.tail)) {
    int count = 0;
    const auto each = static_cast<std::size_t>(at.target.levels - 1);
    for (std::size_t i = 0; i < each; ++i)
      count += sum * t->directions[channel] >= t->thresholds[channel * each + i];
    return count;
  }
  if (const auto* a = std::get_if<Affine>(&at.product.tail)) {
    float y = static_cast<float>(sum) * a->gains[channel];
    y = y + a->offsets[channel];
    return static_cast<int>(
        std::clamp(std::nearbyint(y), 0.0f, static_cast<float>(at.target.levels - 1)));
  }
  const auto& table = std::get<Table>(at.product.tail);
  const std::size_t each = table.entries.size() / table.first.size();
  return table.entries[channel * each + static_cast<std::size_t>(sum - table.first[channel])];
}

struct Memory {
  std::vector<std::byte> bytes;
  std::byte* data;
  Memory(const Storage& storage, std::int64_t rows)
      : bytes(static_cast<std::size_t>(storage.size(rows) + slack + alignment), std::byte{0xa5}) {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes.data());
    data = bytes.data() + (alignment - at % alignment) % alignment;
  }
};

Memory stored(const Storage& storage, const std::vector<std::uint8_t>& indices, std::int64_t rows) {
  Memory memory(storage, rows);
  clear_border(storage, memory.data, 0, rows);
  std::size_t next = 0;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t y = 0; y < storage.height; ++y)
      for (std::int64_t x = 0; x < storage.width;
           ++x, next += static_cast<std::size_t>(storage.channels))
        put_run(storage.coding, memory.data + row * storage.row + storage.offset(y, x), 0,
                &indices[next], storage.channels);
  return memory;
}

// A part at a time, in three pieces of lines and chunks of channels.
template <class Target>
void run_all(const Layer& at, const PackedProduct& packed, const std::byte* source,
             Target* target) {
  const std::int64_t third = std::max<std::int64_t>(1, at.target.height / 3);
  for (std::int64_t line = 0; line < at.target.height; line += third)
    for (std::int64_t c = 0; c < at.target.channels; c += channel_grain)
      packed.run(source, target,
                 {0, at.rows, line, std::min(line + third, at.target.height), c,
                  std::min(c + channel_grain, at.target.channels)});
}

bool same_indices(const Layer& at, const PackedProduct& packed, const Memory& source,
                  const Storage& to, const std::vector<std::int64_t>& sums) {
  const Memory target(to, at.rows);
  run_all(at, packed, source.data, target.data);
  std::size_t next = 0;
  std::vector<std::uint8_t> got(static_cast<std::size_t>(at.target.channels) + 32);
  for (std::int64_t row = 0; row < at.rows; ++row)
    for (std::int64_t y = 0; y < at.target.height; ++y)
      for (std::int64_t x = 0; x < at.target.width; ++x) {
        const std::byte* const pixel = target.data + row * to.row + to.offset(y, x);
        const bool bytes = to.coding == Coding::bytes;
        const std::int64_t read = bytes ? at.target.channels : (at.target.channels + 31) / 32 * 32;
        take_run(to.coding, pixel, 0, got.data(), read);
        for (std::int64_t c = 0; c < read; ++c) {
          const int wanted =
              c < at.target.channels ? index_of(at, sums[next++], static_cast<std::size_t>(c)) : 0;
          if (got[static_cast<std::size_t>(c)] != wanted || take(to.coding, pixel, c) != wanted) {
            std::printf("index (%d %d %d %d): %d, not %d\n", int(row), int(y), int(x), int(c),
                        got[static_cast<std::size_t>(c)], wanted);
            return false;
          }
        }
      }
  return true;
}

bool same_floats(const Layer& at, const PackedProduct& packed, const Memory& source,
                 FloatStrides strides, const std::vector<std::int64_t>& sums) {
  std::vector<float> target(sums.size(), -77.0f);
  run_all(at, packed, source.data, target.data());
  const auto& tail = std::get<Arithmetic>(at.product.tail);
  const std::int64_t pixels = at.target.height * at.target.width;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto c = i % static_cast<std::size_t>(at.target.channels);
    const auto pixel = static_cast<std::int64_t>(i / static_cast<std::size_t>(at.target.channels));
    float y = static_cast<float>(sums[i]) * tail.scales[c];
    for (const Step& step : tail.steps)
      y = after(step.kind(), y, step.operands[step.operands.size() == 1 ? 0 : c]);
    const float got = target[static_cast<std::size_t>(
        pixel / pixels * strides.row + pixel % pixels * strides.pixel +
        static_cast<std::int64_t>(c) * strides.channel)];
    if (std::isnan(y) ? !std::isnan(got) : std::memcmp(&y, &got, sizeof y) != 0) {
      std::printf("float %d: %g, not %g\n", int(i), got, y);
      return false;
    }
  }
  return true;
}

constexpr std::string_view all_levels[] = {"baseline",   "avx2",          "avxvnni", "avx512",
                                           "avx512vnni", "avx512vpopcnt", "amx"};

int kernels_seen[64];

bool holds(const Layer& at, const std::vector<std::uint8_t>& indices,
           const std::vector<std::int64_t>& sums, Level level) {
  const Coding wanted = PackedProduct::wanted(at.task(), level);
  Border border = Border::of(at.product.window);
  border.left += 1, border.bottom += 2;  // a border may be larger than the window needs
  std::vector<Coding> codings = {Coding::bytes};
  if (wanted != Coding::bytes) codings.push_back(wanted);
  for (const Coding coding : {Coding::bits, Coding::planes})
    if (coding != wanted && at.source.levels <= most_levels_of(coding)) codings.push_back(coding);
  for (const Coding coding : codings) {
    const Storage from(coding, at.source, border);
    const Memory source = stored(from, indices, at.rows);
    const auto describe = [&](std::string_view kernel) {
      std::printf("  %.*s, kernel %.*s, coding %d, tail %d\n", int(name_of(level).size()),
                  name_of(level).data(), int(kernel.size()), kernel.data(), int(coding),
                  int(at.product.tail.index()));
      return false;
    };
    try {
      if (std::holds_alternative<Arithmetic>(at.product.tail)) {
        const std::int64_t pixels = at.target.height * at.target.width;
        for (const FloatStrides strides :
             {FloatStrides{pixels * at.target.channels, at.target.channels, 1},
              FloatStrides{pixels * at.target.channels, 1, pixels}}) {
          const PackedProduct packed(at.task(), from, strides, level);
          if (!same_floats(at, packed, source, strides, sums)) return describe(packed.kernel());
        }
      } else {
        for (const Coding to : {Coding::bytes, Coding::bits, Coding::planes})
          if (at.target.levels <= most_levels_of(to)) {
            const Storage storage(to, at.target, {1, 0, 0, 2});
            const PackedProduct packed(at.task(), from, storage, level);
            ++kernels_seen[packed.kernel()[0] == 'x' ? 0 : 1];
            if (!same_indices(at, packed, source, storage, sums)) return describe(packed.kernel());
          }
      }
    } catch (const Error& error) {
      // Bits that no kernel multiplies are offered on purpose.
      if (coding == Coding::bytes || coding == wanted) {
        std::printf("%s\n", error.what());
        return describe("");
      }
    }
  }
  return true;
}

int test(unsigned seed, int count) {
  for (int i = 0; i < count; ++i) {
    random_bits.seed(seed + static_cast<unsigned>(i));
    Layer at;
    random_layer(at);
    std::vector<std::uint8_t> indices(static_cast<std::size_t>(
        at.rows * at.source.height * at.source.width * at.source.channels));
    for (auto& index : indices)
      index = static_cast<std::uint8_t>(number(0, 3) == 0 ? at.source.levels - 1
                                                          : number(0, at.source.levels - 1));
    std::vector<std::int64_t> sums;
    for (std::int64_t row = 0; row < at.rows; ++row)
      for (std::int64_t y = 0; y < at.target.height; ++y)
        for (std::int64_t x = 0; x < at.target.width; ++x)
          for (std::int64_t c = 0; c < at.target.channels; ++c)
            sums.push_back(at.sum(indices.data(), row, y, x, c));
    const std::vector<std::int64_t> none{0};
    random_tail(at, sums.empty() ? none : sums);
    for (const std::string_view name : all_levels) {
      try {
        select_level(name);
      } catch (const Error&) {
        continue;
      }
      if (!holds(at, indices, sums, selected_level())) {
        const Window& w = at.product.window;
        std::printf(
            "  seed %u: rows %d, %dx%dx%d -> %dx%dx%d, groups %d, kernel %dx%d, stride %dx%d, "
            "dilation %dx%d, pads %d %d %d %d, codes %d + %d * [0, %d), %d weights of %d bits\n",
            seed + static_cast<unsigned>(i), int(at.rows), int(at.source.height),
            int(at.source.width), int(at.source.channels), int(at.target.height),
            int(at.target.width), int(at.target.channels), int(at.product.groups),
            int(w.kernel_height), int(w.kernel_width), int(w.stride_height), int(w.stride_width),
            int(w.dilation_height), int(w.dilation_width), int(w.pad_top), int(w.pad_left),
            int(w.pad_bottom), int(w.pad_right), int(at.source.lowest), int(at.source.step),
            int(at.source.levels), int(at.values.size()), int(at.product.weight_bits));
        return 1;
      }
    }
  }
  std::printf("%d layers\n", count);
  return 0;
}

struct Known {
  const char* name;
  std::int64_t rows, height, width, channels, out, kernel, stride, pad;
  std::int64_t groups;
};

constexpr Known known[] = {
    {"tfc1 b1", 1, 1, 1, 784, 64, 1, 1, 0, 1},
    {"tfc2 b1", 1, 1, 1, 64, 64, 1, 1, 0, 1},
    {"tfc1 b64", 64, 1, 1, 784, 64, 1, 1, 0, 1},
    {"cnv2 3x3x64", 1, 30, 30, 64, 64, 3, 1, 0, 1},
    {"cnv4 3x3x128", 1, 12, 12, 128, 128, 3, 1, 0, 1},
    {"cnv6 3x3x256", 1, 3, 3, 256, 256, 3, 1, 0, 1},
    {"first 3x3x3 s2", 1, 224, 224, 3, 32, 3, 2, 1, 1},
    {"dw 112x32", 1, 112, 112, 32, 32, 3, 1, 1, 32},
    {"dw 14x512", 1, 14, 14, 512, 512, 3, 1, 1, 512},
    {"pw 56x128", 1, 56, 56, 128, 128, 1, 1, 0, 1},
    {"pw 14x512", 1, 14, 14, 512, 512, 1, 1, 0, 1},
    {"res 3x3x64 56", 1, 56, 56, 64, 64, 3, 1, 1, 1},
    {"res 3x3x512 7", 1, 7, 7, 512, 512, 3, 1, 1, 1},
    {"gemv 4096", 1, 1, 1, 4096, 4096, 1, 1, 0, 1},
};

struct Kind {
  const char* name;
  std::int64_t weight_bits;
  std::vector<std::int32_t> values;
  std::int64_t lowest, step, levels, out_levels;
};

int time_all(std::string_view level, const std::string& filter) {
  select_level(level);
  std::vector<std::int32_t> four, eight;
  for (int i = 0; i < 16; ++i) four.push_back(i - 8);
  for (int i = 0; i < 256; ++i) eight.push_back(i - 128);
  const Kind kinds[] = {
      {"w1a1", 1, {-1, 1}, -1, 2, 2, 2},       {"w1a2", 1, {-1, 1}, 0, 1, 4, 4},
      {"w1t", 1, {-1, 1}, -1, 1, 3, 3},        {"tt", 2, {-1, 0, 1}, -1, 1, 3, 3},
      {"w2a2", 2, {0, 1, -2, -1}, 0, 1, 4, 4}, {"w2a8", 2, {0, 1, -2, -1}, 0, 1, 256, 256},
      {"w4a4", 4, four, 0, 1, 16, 16},         {"w8a8", 8, eight, 0, 1, 256, 256}};
  for (const Known& shape : known)
    for (const Kind& kind : kinds) {
      const std::string name = std::string(shape.name) + " " + kind.name;
      if (name.find(filter) == std::string::npos) continue;
      Layer at;
      at.rows = shape.rows;
      at.source = {shape.height, shape.width, shape.channels, kind.lowest, kind.step, kind.levels};
      at.target = {0, 0, shape.out, 0, 1, kind.out_levels};
      at.product.window = {shape.kernel, shape.kernel, shape.stride, shape.stride, 1, 1,
                           shape.pad,    shape.pad,    shape.pad,    shape.pad};
      at.product.groups = shape.groups, at.product.weight_bits = kind.weight_bits;
      at.values = kind.values;
      at.fit_target();
      at.fill_weights();
      if (kind.out_levels < 256) {
        at.integers[0].assign(static_cast<std::size_t>(shape.out), 1);
        for (std::int64_t i = 0; i < shape.out * (kind.out_levels - 1); ++i)
          at.integers[1].push_back(static_cast<std::int32_t>(i % (kind.out_levels - 1) * 10));
        at.product.tail = Thresholds{at.integers[0], at.integers[1]};
      } else {
        at.floats[0].assign(static_cast<std::size_t>(shape.out), 0.01f);
        at.floats[1].assign(static_cast<std::size_t>(shape.out), 1.0f);
        at.product.tail = Affine{at.floats[0], at.floats[1]};
      }
      const Storage from(PackedProduct::wanted(at.task(), selected_level()), at.source,
                         Border::of(at.product.window));
      const Storage to(kind.out_levels == 2   ? Coding::bits
                       : kind.out_levels <= 4 ? Coding::planes
                                              : Coding::bytes,
                       at.target, {});
      std::vector<std::uint8_t> indices(static_cast<std::size_t>(
          at.rows * at.source.height * at.source.width * at.source.channels));
      for (auto& index : indices) index = static_cast<std::uint8_t>(number(0, kind.levels - 1));
      const Memory source = stored(from, indices, at.rows), target(to, at.rows);
      const PackedProduct packed(at.task(), from, to, selected_level());
      const Part part{0, at.rows, 0, at.target.height, 0, at.target.channels};
      const auto macs = static_cast<double>(packed.multiplications() * at.rows);
      double best = 1e9;
      const int repeats = std::max(1, static_cast<int>(2e8 / macs / 30));
      for (int round = 0; round < 25; ++round) {
        const auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < repeats; ++i) packed.run(source.data, target.data, part);
        best = std::min(
            best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() /
                      repeats);
      }
      std::printf("%-22s %-10s %10.2f us %9.1f GMAC/s\n", name.c_str(),
                  std::string(packed.kernel()).c_str(), best * 1e6, macs / best / 1e9);
      std::fflush(stdout);
    }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "test";
  if (verb == "time") return time_all(count > 2 ? words[2] : "baseline", count > 3 ? words[3] : "");
  return test(count > 2 ? static_cast<unsigned>(std::atoi(words[2])) : 1,
              count > 3 ? std::atoi(words[3]) : 300);
}
