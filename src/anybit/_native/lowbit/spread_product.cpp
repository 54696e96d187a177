// SPDX-License-Identifier: Apache-2.0
#include "spread_product.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace anybit::lowbit {

namespace {

constexpr std::int64_t most_phases = 64;

// Elements along an axis with zeros between them.
struct Spacing {
  std::int64_t step = 1;    // from an element to the next
  std::int64_t before = 0;  // zeros before the first element
  std::int64_t first = 0, last = 0;
};

std::optional<Spacing> spacing_of(Integers indices) {
  const auto is_element = [](std::int32_t index) { return index >= 0; };
  const auto start = std::ranges::find_if(indices, is_element);
  if (start == indices.end()) return std::nullopt;
  const auto next = std::find_if(start + 1, indices.end(), is_element);
  Spacing spacing;
  spacing.before = start - indices.begin();
  spacing.first = spacing.last = *start;
  if (next != indices.end()) spacing.step = next - start;
  std::int64_t after = -spacing.before;  // distance from the first element
  for (const std::int32_t index : indices) {
    const bool is_place = after >= 0 && after % spacing.step == 0;
    if (index != (is_place ? spacing.first + after / spacing.step : -1)) return std::nullopt;
    if (is_place) spacing.last = index;
    ++after;
  }
  const std::int64_t rest = after - 1 - (spacing.last - spacing.first) * spacing.step;
  if (spacing.before >= spacing.step || rest >= spacing.step) return std::nullopt;
  return spacing;
}

// Whether windows read no elements that the Gather leaves out: such are zeros outside its target.
bool reads_all(const Spacing& spacing, std::int64_t size, std::int64_t pad, std::int64_t pad_end) {
  return (spacing.first == 0 || pad == 0) && (spacing.last == size - 1 || pad_end == 0);
}

// A phase along one axis: its first output, their number, its taps, and the padding before and
// after the elements. A negative padding omits elements.
struct AxisPhase {
  std::int64_t first = 0, count = 0;
  std::int64_t tap = 0, taps = 0;
  std::int64_t pad = 0, pad_end = 0;
};

std::vector<AxisPhase> split_axis(const Spacing& spacing, std::int64_t kernel, std::int64_t pad,
                                  std::int64_t size, std::int64_t outputs) {
  const std::int64_t step = spacing.step;
  std::vector<AxisPhase> phases;
  for (std::int64_t first = 0; first < std::min(step, outputs); ++first) {
    AxisPhase phase;
    phase.first = first, phase.count = (outputs - first + step - 1) / step;
    const std::int64_t start = first - pad - spacing.before;  // of the first window
    phase.tap = (-start % step + step) % step;
    phase.taps = phase.tap < kernel ? (kernel - phase.tap + step - 1) / step : 0;
    if (phase.taps > 0) phase.pad = -(spacing.first + (start + phase.tap) / step);
    const std::int64_t end = phase.count - phase.pad + std::max<std::int64_t>(phase.taps, 1) - 1;
    phase.pad_end = std::max<std::int64_t>(end - size, 0);
    phases.push_back(phase);
  }
  return phases;
}

struct Spacings {
  Spacing lines, columns;
};

std::optional<Spacings> spacings_of(const Program& program, const Gather& gather,
                                    const Product& product) {
  const Tensor &from = program.tensors[static_cast<std::size_t>(gather.source)],
               &to = program.tensors[static_cast<std::size_t>(gather.target)];
  const Window& w = product.window;
  if (w.stride_height != 1 || w.stride_width != 1 || w.dilation_height != 1 ||
      w.dilation_width != 1)
    return std::nullopt;
  if (gather.first_channel != 0 || from.channels != to.channels ||
      static_cast<std::int64_t>(gather.channels.size()) != to.channels)
    return std::nullopt;
  for (std::size_t i = 0; i < gather.channels.size(); ++i)
    if (gather.channels[i] != static_cast<std::int32_t>(i)) return std::nullopt;
  const auto lines = spacing_of(gather.rows), columns = spacing_of(gather.columns);
  if (!lines || !columns || !reads_all(*lines, from.height, w.pad_top, w.pad_bottom) ||
      !reads_all(*columns, from.width, w.pad_left, w.pad_right))
    return std::nullopt;
  const std::int64_t phases = lines->step * columns->step;
  if (phases < 2 || phases > most_phases || to.lowest + to.step * gather.fill != 0)
    return std::nullopt;
  return Spacings{*lines, *columns};
}

// Reads the indices of weights one by one.
std::uint8_t weight_index(const Product& product, std::int64_t number) {
  auto place = static_cast<std::size_t>(number * product.weight_bits);
  unsigned index = 0;
  for (std::int64_t bit = 0; bit < product.weight_bits; ++bit, ++place)
    index |= static_cast<unsigned>(product.weights[place / 8] >> place % 8 & 1) << bit;
  return static_cast<std::uint8_t>(index);
}

// Returns a phase of a product with `inner` source channels per group.
Phase make_phase(const Product& product, std::int64_t channels, std::int64_t inner,
                 const AxisPhase& lines, const AxisPhase& columns, std::int64_t line_step,
                 std::int64_t column_step) {
  Phase phase{lines.first, columns.first, lines.count, columns.count, {}, {}};
  phase.has_taps = lines.taps > 0 && columns.taps > 0;
  const std::int64_t height = std::max<std::int64_t>(lines.taps, 1),
                     width = std::max<std::int64_t>(columns.taps, 1);
  phase.window = {height,        width,          1, 1, 1, 1, lines.pad, columns.pad,
                  lines.pad_end, columns.pad_end};
  const Window& w = product.window;
  if (!phase.has_taps) {
    phase.weights.resize(static_cast<std::size_t>(channels * height * width * inner));
    return phase;
  }
  for (std::int64_t channel = 0; channel < channels; ++channel)
    for (std::int64_t y = lines.tap; y < w.kernel_height; y += line_step)
      for (std::int64_t x = columns.tap; x < w.kernel_width; x += column_step) {
        const std::int64_t first = ((channel * w.kernel_height + y) * w.kernel_width + x) * inner;
        for (std::int64_t i = 0; i < inner; ++i)
          phase.weights.push_back(weight_index(product, first + i));
      }
  return phase;
}

}  // namespace

bool SpreadProduct::has_one_window() const {
  return std::ranges::all_of(phases, [&](const Phase& phase) {
    const Window &one = phase.window, &other = phases.front().window;
    return phase.has_taps && phase.height == phases.front().height &&
           phase.width == phases.front().width && one.kernel_height == other.kernel_height &&
           one.kernel_width == other.kernel_width && one.pad_top == other.pad_top &&
           one.pad_left == other.pad_left;
  });
}

std::vector<std::size_t> find_spreads(const Program& program,
                                      const std::vector<std::size_t>& uses) {
  const std::size_t count = program.instructions.size();
  std::vector<std::size_t> spreads(count), writers(program.tensors.size(), count);
  std::iota(spreads.begin(), spreads.end(), std::size_t{0});
  for (std::size_t i = 0; i < count; ++i) {
    if (const auto* const gather = std::get_if<Gather>(&program.instructions[i]))
      writers[static_cast<std::size_t>(gather->target)] = i;
    const auto* const product = std::get_if<Product>(&program.instructions[i]);
    if (product == nullptr) continue;
    const auto source = static_cast<std::size_t>(product->source);
    const std::size_t writer = writers[source];
    if (writer == count || uses[source] != 2) continue;
    const auto& gather = std::get<Gather>(program.instructions[writer]);
    if (spacings_of(program, gather, *product)) spreads[i] = writer;
  }
  return spreads;
}

SpreadProduct split_product(const Program& program, const Gather& gather, const Product& product,
                            std::int64_t channels) {
  const Tensor& from = program.tensors[static_cast<std::size_t>(gather.source)];
  const Spacings spacings = *spacings_of(program, gather, product);
  const Window& w = product.window;
  const auto outputs = [](Integers line, std::int64_t kernel, std::int64_t pads) {
    return static_cast<std::int64_t>(line.size()) + pads - kernel + 1;
  };
  const auto lines = split_axis(spacings.lines, w.kernel_height, w.pad_top, from.height,
                                outputs(gather.rows, w.kernel_height, w.pad_top + w.pad_bottom));
  const auto columns =
      split_axis(spacings.columns, w.kernel_width, w.pad_left, from.width,
                 outputs(gather.columns, w.kernel_width, w.pad_left + w.pad_right));
  const std::int64_t inner = from.channels / product.groups;
  SpreadProduct spread{spacings.lines.step, spacings.columns.step, {}};
  for (const AxisPhase& line : lines)
    for (const AxisPhase& column : columns)
      spread.phases.push_back(
          make_phase(product, channels, inner, line, column, spread.line_step, spread.column_step));
  return spread;
}

Product product_of(const Phase& phase, const Product& product) {
  static constexpr std::int32_t zero[] = {0};
  Product same = product;
  same.window = phase.window, same.weight_bits = 8, same.weights = phase.weights;
  if (!phase.has_taps) same.values = zero;
  return same;
}

}  // namespace anybit::lowbit
