// SPDX-License-Identifier: Apache-2.0
#include "product.hpp"

#include <algorithm>
#include <map>

#include "choice.hpp"
#include "damage.hpp"
#include "product_state.hpp"
#include "taps.hpp"

namespace anybit::lowbit {

namespace {

using State = PackedProduct::State;

bool reads_planes(const State& at) { return at.from.coding == Coding::planes; }

// Which taps of a kernel lie inside the tensor, for the windows of one axis: windows with the same
// taps have the same class.
struct AxisClasses {
  std::vector<std::int32_t> of;  // each window
  std::vector<Taps> taps;

  AxisClasses(std::int64_t size, std::int64_t windows, std::int64_t kernel, std::int64_t stride,
              std::int64_t dilation, std::int64_t pad) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> known;
    for (std::int64_t window = 0; window < windows; ++window) {
      const Taps inside(window * stride - pad, kernel, dilation, size);
      // Most windows are as the one before.
      if (!of.empty() && taps[static_cast<std::size_t>(of.back())] == inside) {
        of.push_back(of.back());
        continue;
      }
      const auto [entry, is_new] =
          known.try_emplace({inside.first, inside.last}, static_cast<std::int32_t>(known.size()));
      if (is_new) taps.push_back(inside);
      of.push_back(entry->second);
    }
  }
  // All windows in one class, whose taps all count.
  AxisClasses(std::int64_t windows, std::int64_t kernel)
      : of(static_cast<std::size_t>(windows)), taps{{0, kernel}} {}
};

// Sums of the weights of a channel over rectangles of taps.
class TapSums {
 public:
  explicit TapSums(const Window& window)
      : height_(window.kernel_height),
        width_(window.kernel_width),
        sums_(static_cast<std::size_t>((height_ + 1) * (width_ + 1))) {}

  void read(const Weights& weights, std::int64_t channel) {
    positive_ = 0;
    const std::int8_t* weight = weights.of(channel);
    for (std::int64_t y = 0; y < height_; ++y) {
      std::int64_t line = 0;
      for (std::int64_t x = 0; x < width_; ++x) {
        for (std::int64_t i = 0; i < weights.inner; ++i, ++weight) {
          line += *weight;
          positive_ += *weight > 0 ? 1 : 0;
        }
        before(y + 1, x + 1) = before(y, x + 1) + line;
      }
    }
  }

  std::int64_t positive() const { return positive_; }  // how many weights are
  std::int64_t all() { return before(height_, width_); }
  std::int64_t of(const Taps& rows, const Taps& columns) {
    return before(rows.last, columns.last) - before(rows.first, columns.last) -
           before(rows.last, columns.first) + before(rows.first, columns.first);
  }

 private:
  // Of the taps above and left of a corner.
  std::int64_t& before(std::int64_t y, std::int64_t x) {
    return sums_[static_cast<std::size_t>(y * (width_ + 1) + x)];
  }

  const std::int64_t height_, width_;
  std::vector<std::int64_t> sums_;
  std::int64_t positive_ = 0;
};

// How the accumulator follows from the sum of a scheme, for a channel whose weights have the unit
// `unit`: see `Scheme`. Indices in the border and behind the last channel are 0.
struct Folding {
  std::int64_t scale = 0;
  std::int64_t everywhere = 0;  // a constant
  std::int64_t inside = 0;      // times the sum of the weights inside the tensor
  std::int64_t outside = 0;     // times that of those outside
};

Folding folding_of(const State& at, std::int64_t unit, std::int64_t positive) {
  const std::int64_t low = at.source.lowest, step = at.source.step;
  switch (at.scheme) {
    case Scheme::dot8:
    case Scheme::dot4:
    case Scheme::dot2:
    case Scheme::wide8:
    case Scheme::depthwise:
    case Scheme::depthwise4:
      return {step, 0, low, 0};
    case Scheme::xor11:
    case Scheme::xor12:
    case Scheme::ternary11:
    case Scheme::ternary12:
      return {-step * unit, (reads_planes(at) ? 3 : 1) * step * unit * positive, low, 0};
    case Scheme::signs12: {
      // Behind the last channel an index of 0 counts as a sign, but meets no weight.
      const std::int64_t words = (at.source.channels + 31) / 32;
      const std::int64_t gaps =
          (words * 32 - at.source.channels) * at.window.kernel_height * at.window.kernel_width;
      return {-step * unit, -step * unit * gaps, low + step, step};
    }
    case Scheme::and21:
    case Scheme::and22:
      return {step * unit, 0, low, 0};
  }
  return {};
}

// Only the low 32 bits matter: accumulators fit, and parts of them may not.
std::int32_t wrapped(std::int64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint64_t>(value)));
}

// Where nothing is added at the border, or nothing lies there, all windows are alike.
std::pair<AxisClasses, AxisClasses> classes_of(const State& at) {
  const Window& w = at.window;
  if (at.source.lowest == 0 || Border::of(w).empty())
    return {{at.target.height, w.kernel_height}, {at.target.width, w.kernel_width}};
  return {{at.source.height, at.target.height, w.kernel_height, w.stride_height, w.dilation_height,
           w.pad_top},
          {at.source.width, at.target.width, w.kernel_width, w.stride_width, w.dilation_width,
           w.pad_left}};
}

void fold(State& at, const Weights& weights, const WeightForm& form, const Tail& tail,
          std::int64_t most_bytes) {
  auto [lines, columns] = classes_of(at);
  at.padded = (weights.channels + chunk_channels - 1) / chunk_channels * chunk_channels;
  const auto constants =
      at.padded * static_cast<std::int64_t>(lines.taps.size() * columns.taps.size());
  need_room(constants * 4, most_bytes);
  at.constants = Aligned<std::int32_t>(constants);
  at.scales = Aligned<std::int32_t>(at.padded);
  const auto* const thresholds = std::get_if<Thresholds>(&tail);
  const bool two_bits = at.scheme == Scheme::and21 || at.scheme == Scheme::and22;
  TapSums sums(at.window);
  for (std::int64_t channel = 0; channel < weights.channels; ++channel) {
    sums.read(weights, channel);
    const std::int64_t unit =
        two_bits ? -form.set.front() / 2 : form.units[static_cast<std::size_t>(channel)];
    const Folding folding = folding_of(at, unit, sums.positive());
    // Thresholds compare the accumulator times the direction.
    const std::int64_t sign =
        thresholds == nullptr ? 1 : thresholds->directions[static_cast<std::size_t>(channel)];
    at.scales[channel] = wrapped(sign * folding.scale);
    std::int64_t place = channel;
    for (const Taps& rows : lines.taps)
      for (const Taps& each : columns.taps) {
        const std::int64_t inside = sums.of(rows, each);
        at.constants[place] = wrapped(sign * (folding.everywhere + folding.inside * inside +
                                              folding.outside * (sums.all() - inside)));
        place += at.padded;
      }
  }
  at.column_classes = static_cast<std::int32_t>(columns.taps.size());
  at.line_class = std::move(lines.of);
  at.column_class = std::move(columns.of);
}

// Panels never cross a chunk or a group.
std::vector<PanelChannels> lay_panels(State& at, std::int64_t groups) {
  const std::int64_t channels = at.target.channels, each = channels / groups;
  const std::int64_t inner = at.source.channels / groups;
  const bool depthwise = is_depthwise(at.scheme);
  std::vector<PanelChannels> panels;
  for (std::int64_t chunk = 0; chunk < channels; chunk += chunk_channels) {
    at.first_run.push_back(at.runs.size());
    const std::int64_t end = std::min(channels, chunk + chunk_channels);
    for (std::int64_t channel = chunk; channel < end;) {
      const std::int64_t group = depthwise ? 0 : channel / each;
      const std::int64_t last = depthwise ? end : std::min(end, (group + 1) * each);
      PanelRun run;
      run.panel = static_cast<std::int64_t>(panels.size());
      run.channel = channel - chunk;
      if (depthwise) run.source = channel;
      else if (at.from.coding == Coding::bytes) run.source = group * inner;
      else run.source = group * (inner / 32) * (reads_planes(at) ? 8 : 4);
      for (; channel < last; channel += panels.back().count, ++run.panels)
        panels.push_back(
            {channel, static_cast<int>(std::min<std::int64_t>(panel_channels, last - channel))});
      at.runs.push_back(run);
    }
  }
  at.first_run.push_back(at.runs.size());
  return panels;
}

// Runs of the window in memory; neighbouring taps of a line are one where nothing lies between.
Runs lay_segments(State& at, std::int64_t groups) {
  const Window& w = at.window;
  const std::int64_t taps = w.kernel_height * w.kernel_width;
  const bool joined = groups == 1 && w.dilation_width == 1 && !is_depthwise(at.scheme);
  for (std::int64_t y = 0; y < w.kernel_height; ++y)
    for (std::int64_t x = 0; x < (joined ? 1 : w.kernel_width); ++x)
      at.segments.push_back(y * w.dilation_height * at.from.line +
                            x * w.dilation_width * at.from.pixel);
  const auto count = static_cast<std::int64_t>(at.segments.size());
  // What is read besides meets weights of 0.
  while (at.scheme == Scheme::depthwise4 && at.segments.size() % taps_together != 0)
    at.segments.push_back(at.segments.back());
  return {count, taps / count};
}

// See State::gap.
int gap_of(const State& at) {
  const Window& w = at.window;
  if (!at.kernels->wants_even_windows || !is_dot(at.scheme) || w.stride_height != 1 ||
      w.stride_width != 1 || at.from.line % at.from.pixel != 0)
    return -1;
  const std::int64_t gap = at.from.line / at.from.pixel - at.target.width;
  return gap < at.target.width ? static_cast<int>(gap) : -1;
}

// The sums of a block stay in the nearest cache, and so do the weights if they fit besides.
int block_pixels_of(const State& at) {
  constexpr std::ptrdiff_t near_bytes = 40 * 1024;
  const int spread = at.scheme == Scheme::dot2 ? 4 : at.scheme == Scheme::dot4 ? 2 : 1;
  const std::ptrdiff_t chunk = at.weights.panel * spread * (chunk_channels / panel_channels);
  return chunk <= near_bytes ? std::min(32, at.kernels->block_pixels) : at.kernels->block_pixels;
}

std::unique_ptr<State> made(const ProductTask& task, const Storage& source, const Storage& target,
                            FloatStrides floats, Level level) {
  auto at = std::make_unique<State>();
  const Product& product = *task.product;
  at->source = task.source, at->target = task.target, at->window = product.window;
  at->from = source, at->to = target, at->floats = floats;
  const Weights weights(product, task.target.channels, task.source.channels);
  const WeightForm form(weights);
  at->scheme = scheme_for(task, form, source.coding, level);
  at->kernels = &kernels_of<ProductKernels>(level);
  at->gap = gap_of(*at);
  const std::vector<PanelChannels> panels = lay_panels(*at, product.groups);
  at->weights = packed(at->scheme, weights, form, lay_segments(*at, product.groups), panels,
                       at->kernels->dot_bytes, task.most_bytes);
  at->block_pixels = block_pixels_of(*at);
  if (is_depthwise(at->scheme)) at->narrow_steps = static_cast<int>(short_terms(task, form));
  fold(*at, weights, form, product.tail, task.most_bytes);
  at->tail = tail_state(product.tail, task.target.channels, task.target.levels, task.most_bytes);
  settle(*at, form.largest);
  draw_lines(at->tail, task.target.channels, task.target.levels);
  at->multiplications =
      static_cast<std::int64_t>(weights.values.size()) * task.target.height * task.target.width;
  return at;
}

}  // namespace

Coding PackedProduct::wanted(const ProductTask& task, Level level) {
  const Weights weights(*task.product, task.target.channels, task.source.channels);
  return coding_for(task, WeightForm(weights), level);
}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, const Storage& target,
                             Level level)
    : state_(made(task, source, target, {}, level)) {}

PackedProduct::PackedProduct(const ProductTask& task, const Storage& source, FloatStrides target,
                             Level level)
    : state_(made(task, source, {}, target, level)) {}

PackedProduct::~PackedProduct() = default;
PackedProduct::PackedProduct(PackedProduct&&) noexcept = default;

std::string_view PackedProduct::kernel() const {
  constexpr std::string_view names[scheme_count] = {
      "dot8",      "dot4",    "dot2",  "wide8", "xor11",     "xor12",    "ternary11",
      "ternary12", "signs12", "and21", "and22", "depthwise", "depthwise"};
  return names[static_cast<std::size_t>(state_->scheme)];
}

std::int64_t PackedProduct::bytes() const {
  const State& at = *state_;
  return static_cast<std::int64_t>(at.weights.bytes.bytes() + at.constants.bytes() +
                                   at.scales.bytes() + at.tail.thresholds.bytes() +
                                   at.tail.entries.size() +
                                   at.tail.operands.size() * at.tail.gains.bytes() +
                                   (at.line_class.size() + at.column_class.size()) * 4);
}

std::int64_t PackedProduct::multiplications() const { return state_->multiplications; }

}  // namespace anybit::lowbit
