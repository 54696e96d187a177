// SPDX-License-Identifier: Apache-2.0
// Products of every kind at every level that this processor supports, against plain loops:
//   products test [SEED [COUNT]]      random layers, odd sizes, all epilogues
//   products time LEVEL [FILTER]      some layers of well-known networks
//   products costs LEVEL              cycles of the kinds of kernels
#include "../levels.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "costs.hpp"
#include "timing.hpp"

namespace {

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
          const int expected =
              c < at.target.channels ? index_of(at, sums[next++], static_cast<std::size_t>(c)) : 0;
          if (got[static_cast<std::size_t>(c)] != expected ||
              take(to.coding, pixel, c) != expected) {
            std::printf("index (%d %d %d %d): %d, not %d\n", int(row), int(y), int(x), int(c),
                        got[static_cast<std::size_t>(c)], expected);
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
  const auto& epilogue = std::get<Arithmetic>(at.product.epilogue);
  const std::int64_t pixels = at.target.height * at.target.width;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto c = i % static_cast<std::size_t>(at.target.channels);
    const auto pixel = static_cast<std::int64_t>(i / static_cast<std::size_t>(at.target.channels));
    const float y = after(epilogue, sums[i], c);
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

bool holds(const Layer& at, const std::vector<std::uint8_t>& indices,
           const std::vector<std::int64_t>& sums, Level level) {
  const Coding preferred = PackedProduct::preferred_coding(at.task(), level);
  Border border = Border::of(at.product.window);
  // A border may be larger than the window needs.
  if (number(0, 1) == 0) border.left += 1, border.bottom += 2;
  std::vector<Coding> codings = {Coding::bytes};
  if (preferred != Coding::bytes) codings.push_back(preferred);
  for (const Coding coding : {Coding::bits, Coding::planes, Coding::nibbles})
    if (coding != preferred && at.source.levels <= most_levels_of(coding))
      codings.push_back(coding);
  for (const Coding coding : codings) {
    const Storage from(coding, at.source, border);
    const Memory source = stored(from, indices, at.rows);
    const auto describe = [&](std::string_view kernel) {
      std::printf("  %.*s, kernel %.*s, coding %d, epilogue %d\n", int(name_of(level).size()),
                  name_of(level).data(), int(kernel.size()), kernel.data(), int(coding),
                  int(at.product.epilogue.index()));
      return false;
    };
    try {
      if (std::holds_alternative<Arithmetic>(at.product.epilogue)) {
        const std::int64_t pixels = at.target.height * at.target.width;
        for (const FloatStrides strides :
             {FloatStrides{pixels * at.target.channels, at.target.channels, 1},
              FloatStrides{pixels * at.target.channels, 1, pixels}}) {
          const PackedProduct packed(at.task(), from, strides, level);
          if (!same_floats(at, packed, source, strides, sums)) return describe(packed.kernel());
        }
      } else {
        for (const Coding to : {Coding::bytes, Coding::bits, Coding::planes, Coding::nibbles})
          if (at.target.levels <= most_levels_of(to)) {
            const Storage storage(to, at.target, {1, 0, 0, 2});
            const PackedProduct packed(at.task(), from, storage, level);
            if (!same_indices(at, packed, source, storage, sums)) return describe(packed.kernel());
          }
      }
    } catch (const Error& error) {
      // Some bit codings have no kernel: these must be rejected.
      if (coding == Coding::bytes || coding == preferred) {
        std::printf("%s\n", error.what());
        return describe("");
      }
    }
  }
  return true;
}

// Levels whose dot products of bytes are exact in 32 bits have no slower ones in 16 bits.
bool has_no_slower_dots() {
  for (const std::string_view name : all_levels) {
    try {
      select_level(name);
    } catch (const Error&) {
      continue;
    }
    const ProductKernels& kernels = kernels_of<ProductKernels>(selected_level());
    if (!kernels.dot_is_exact || !kernels.dot_is_exact(255, 128)) continue;
    for (const auto sums : kernels.short_dots) {
      if (sums == nullptr) continue;
      std::printf("%s adds dot products in 16 bits\n", std::string(name).c_str());
      return false;
    }
  }
  return true;
}

int test(unsigned seed, int count) {
  if (!has_no_slower_dots()) return 1;
  for (int i = 0; i < count; ++i) {
    random_bits.seed(seed + static_cast<unsigned>(i));
    Layer at;
    std::vector<std::uint8_t> indices;
    const bool at_edges = number(0, 19) == 0;
    if (at_edges) edge_layer(at, indices);
    else random_layer(at);
    indices.resize(static_cast<std::size_t>(at.rows * at.source.height * at.source.width *
                                            at.source.channels));
    if (!at_edges)
      for (auto& index : indices)
        index = static_cast<std::uint8_t>(at.largest_codes || number(0, 3) == 0
                                              ? at.source.levels - 1
                                              : number(0, at.source.levels - 1));
    std::vector<std::int64_t> sums;
    for (std::int64_t row = 0; row < at.rows; ++row)
      for (std::int64_t y = 0; y < at.target.height; ++y)
        for (std::int64_t x = 0; x < at.target.width; ++x)
          for (std::int64_t c = 0; c < at.target.channels; ++c)
            sums.push_back(at.sum(indices.data(), row, y, x, c));
    const std::vector<std::int64_t> none{0};
    if (at_edges) edge_epilogue(at, sums);
    else random_epilogue(at, sums.empty() ? none : sums);
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

}  // namespace

int main(int count, char** words) {
  const std::string verb = count > 1 ? words[1] : "test";
  if (verb == "time") return time_all(count > 2 ? words[2] : "baseline", count > 3 ? words[3] : "");
  if (verb == "costs") return print_costs(count > 2 ? words[2] : "baseline");
  return test(count > 2 ? static_cast<unsigned>(std::atoi(words[2])) : 1,
              count > 3 ? std::atoi(words[3]) : 300);
}
