// SPDX-License-Identifier: Apache-2.0
// Rows of the first operand and panels of columns of the second one are quantized to numbers of 16
// bits, less the zero-points, and multiplied in pairs.
#include "dynamic_matmul.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "packed_weights.hpp"

namespace anybit::lowbit {

namespace {

constexpr std::int64_t words_together = 2, panel_pair = panel_channels * words_together;
static_assert(lines_together == panel_channels);
// Words of the operands that are quantized before they are multiplied: a part of the L2 cache.
constexpr std::int64_t most_words = std::int64_t{1} << 17;
constexpr std::int64_t chunk_panels = chunk_channels / panel_channels;
// Work that is worth a thread, and the time of one number that is quantized or multiplied.
constexpr std::int64_t grain_picoseconds = 60'000'000, per_number = 500, per_product = 12;

std::int64_t divide_up(std::int64_t size, std::int64_t by) { return (size + by - 1) / by; }

void check_operand(const DynamicMatMul::Operand& at, const char* name) {
  const auto is_positive = [](float x) { return x > 0 && x <= std::numeric_limits<float>::max(); };
  const ScaleConstants& c = at.constants;
  if (!is_positive(c.steps) || !is_positive(c.least) || !is_positive(c.most))
    throw Error(Error::Kind::value, std::string(name) + "_steps, " + name + "_least and " + name +
                                        "_most must be positive numbers");
  if (at.lowest > 0 || at.lowest < -128 || at.highest < 1 || at.highest > 255 ||
      at.highest - at.lowest > 255)
    throw Error(Error::Kind::value, std::string(name) + "_lowest and " + name +
                                        "_highest must be codes of up to 8 bits around 0, got " +
                                        std::to_string(at.lowest) + " and " +
                                        std::to_string(at.highest));
}

// Largest magnitude of a code less its zero-point.
std::int64_t largest_code(const DynamicMatMul::Operand& at) {
  return at.constants.asymmetric ? at.highest - at.lowest : std::max(-at.lowest, at.highest);
}

DynamicCodes codes_of(const DynamicMatMul::Operand& at, const Magnitudes& all) {
  return {at.constants, static_cast<float>(at.lowest), static_cast<float>(at.highest),
          at.whole ? &all : nullptr};
}

// Hosts divide a grain by a few.
constexpr std::int64_t least_grain = 4;

std::int64_t grain_of(std::int64_t numbers, std::int64_t products) {
  const std::int64_t picoseconds = numbers * per_number + products * per_product;
  return std::max(least_grain, grain_picoseconds / std::max<std::int64_t>(picoseconds, 1));
}

}  // namespace

// Memory of a run.
struct DynamicMatMul::Room {
  Aligned<std::int16_t> lines, panels;
  Aligned<float> line_scales, panel_scales;

  template <class T>
  static void grow(Aligned<T>& memory, std::int64_t size) {
    if (memory.size() < size) memory = Aligned<T>(size);
  }
};

// Lends memory to a run.
class DynamicMatMul::Loan {
 public:
  explicit Loan(const DynamicMatMul& owner) : owner_(owner) {
    const std::scoped_lock lock(owner.mutex_);
    if (owner.spare_.empty()) {
      room_ = std::make_unique<Room>();
      return;
    }
    room_ = std::move(owner.spare_.back());
    owner.spare_.pop_back();
  }
  ~Loan() {
    const std::scoped_lock lock(owner_.mutex_);
    if (owner_.spare_.size() < owner_.spare_.capacity()) owner_.spare_.push_back(std::move(room_));
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  Room& room() const { return *room_; }

 private:
  const DynamicMatMul& owner_;
  std::unique_ptr<Room> room_;
};

struct DynamicMatMul::Run {
  const DynamicMatMul& at;
  const float *first, *second;
  float* y;
  const Sizes& sizes;
  Room& room;
  // Words of a line, pairs that are multiplied, panels of a group, and words of a panel.
  std::int64_t line = 0, pairs = 0, panels = 0, panel = 0;
  std::int64_t first_row = 0, last_row = 0;  // of all groups
  Magnitudes all_first{}, all_second{};      // of operands with one scale

  void find_whole() {
    if (at.first_.whole) all_first = at.loops_.find_magnitudes(first, sizes.first.numbers);
    if (at.second_.whole) all_second = at.loops_.find_magnitudes(second, sizes.second.numbers);
  }

  std::int64_t rows() const { return last_row - first_row; }

  static std::int64_t start_of(const Matrices& matrices, std::int64_t group) {
    return matrices.of_group[static_cast<std::size_t>(group)];
  }

  // Quantizes rows of the first operand.
  void fill_lines(std::int64_t group, std::int64_t place, std::int64_t row,
                  std::int64_t count) const {
    const MatrixBlock block{first + start_of(sizes.first, group) + row * sizes.first.row,
                            sizes.first.row, count, sizes.depth};
    const std::int64_t start = place * rows() + row - first_row;
    at.loops_.quantize_rows(codes_of(at.first_, all_first), block, room.lines.data() + start * line,
                            line, room.line_scales.data() + start);
  }

  // Quantizes a panel of columns of the second operand.
  void fill_panel(std::int64_t group, std::int64_t place, std::int64_t number) const {
    const std::int64_t column = number * panel_channels;
    const std::int64_t count = std::min<std::int64_t>(panel_channels, sizes.columns - column);
    auto* const to = reinterpret_cast<std::int32_t*>(room.panels.data() + place * panel);
    float* const scales = room.panel_scales.data() + place * panel_channels;
    const float* const x = second + start_of(sizes.second, group);
    const DynamicCodes codes = codes_of(at.second_, all_second);
    if (at.transposed_)
      return at.loops_.quantize_row_panel(
          codes, {x + column * sizes.second.row, sizes.second.row, count, sizes.depth}, to, scales);
    at.loops_.quantize_column_panel(codes, {x + column, sizes.second.row, sizes.depth, count}, to,
                                    scales);
  }

  // Multiplies a block of rows with all columns of a group.
  void multiply(std::int64_t group, std::int64_t place, std::int64_t row,
                std::int64_t count) const {
    const std::byte* pixels[most_block_pixels];
    const std::int64_t start = place * rows() + row - first_row;
    for (std::int64_t i = 0; i < count; ++i)
      pixels[i] = reinterpret_cast<const std::byte*>(room.lines.data() + (start + i) * line);
    float* const to = y + start_of(sizes.y, group) + row * sizes.y.row;
    for (std::int64_t first_panel = 0; first_panel < panels; first_panel += chunk_panels) {
      const std::int64_t column = first_panel * panel_channels;
      const std::int64_t width = std::min<std::int64_t>(chunk_channels, sizes.columns - column);
      SumBlock sum{};
      sum.pixels = pixels, sum.count = static_cast<int>(count);
      sum.weights = reinterpret_cast<const std::byte*>(room.panels.data() +
                                                       (place * panels + first_panel) * panel);
      sum.panel = panel * static_cast<std::ptrdiff_t>(sizeof(std::int16_t));
      sum.panels = static_cast<int>(std::min(chunk_panels, panels - first_panel));
      sum.stride = chunk_channels, sum.segment_count = 1, sum.fresh_weights = true;
      const float* const scales =
          room.panel_scales.data() + (place * panels + first_panel) * panel_channels;
      const float* const line_scales = room.line_scales.data() + start;
      if (sizes.depth <= at.most_depth_) finish(sum, line_scales, scales, width, to + column);
      else finish_long(sum, line_scales, scales, width, to + column);
    }
  }

  void finish(SumBlock& sum, const float* line_scales, const float* scales, std::int64_t width,
              float* to) const {
    alignas(64) std::int32_t sums[most_block_pixels * chunk_channels];
    add_up(sum, 0, pairs, sums);
    at.loops_.scale_sums(
        {sums, chunk_channels, line_scales, scales, sum.count, width, to, sizes.y.row, at.factor_});
  }

  // The same of sums that need more than 32 bits.
  void finish_long(SumBlock& sum, const float* line_scales, const float* scales, std::int64_t width,
                   float* to) const {
    alignas(64) std::int32_t sums[most_block_pixels * chunk_channels];
    std::int64_t wide[most_block_pixels * chunk_channels] = {};
    const std::int64_t most = at.most_depth_ / words_together;
    for (std::int64_t pair = 0; pair < pairs; pair += most) {
      add_up(sum, pair, std::min(most, pairs - pair), sums);
      for (std::int64_t i = 0; i < sum.count * std::int64_t{chunk_channels}; ++i) {
        const bool is_used = i % chunk_channels < sum.panels * std::int64_t{panel_channels};
        wide[i] += is_used ? sums[i] : 0;
      }
    }
    for (int i = 0; i < sum.count; ++i)
      for (std::int64_t c = 0; c < width; ++c) {
        const auto [small, large] = std::minmax(line_scales[i], scales[c]);
        to[i * sizes.y.row + c] =
            static_cast<float>(wide[i * chunk_channels + c]) * small * large * at.factor_;
      }
  }

  // Adds up some pairs along the depth.
  void add_up(const SumBlock& block, std::int64_t pair, std::int64_t count,
              std::int32_t* sums) const {
    SumBlock sum = block;
    const std::ptrdiff_t offset = pair * words_together * std::ptrdiff_t{sizeof(std::int16_t)};
    sum.segments = &offset, sum.steps = static_cast<int>(count), sum.sums = sums;
    sum.weights += pair * panel_pair * static_cast<std::ptrdiff_t>(sizeof(std::int16_t));
    if (count > 0) at.kernels_.words(sum);
    else std::fill_n(sums, most_block_pixels * chunk_channels, 0);
  }
};

DynamicMatMul::DynamicMatMul(const Operand& first, const Operand& second, bool transposed,
                             float factor, Level level)
    : first_(first),
      second_(second),
      transposed_(transposed),
      factor_(factor),
      loops_(kernels_of<ElementLoops>(level)),
      kernels_(kernels_of<ProductKernels>(level)) {
  check_operand(first, "first");
  check_operand(second, "second");
  const std::int64_t largest = largest_code(first) * largest_code(second);
  most_depth_ =
      std::numeric_limits<std::int32_t>::max() / largest / words_together * words_together;
  spare_.reserve(4);
}

DynamicMatMul::~DynamicMatMul() = default;

void DynamicMatMul::run(const float* first, const float* second, float* y, const Sizes& sizes,
                        const Workers& workers) const {
  const auto groups = static_cast<std::int64_t>(sizes.y.of_group.size());
  if (groups * sizes.rows * sizes.columns == 0) return;
  const Loan loan(*this);
  Room& room = loan.room();
  Run run{*this, first, second, y, sizes, room};
  run.line = divide_up(sizes.depth, lines_together) * lines_together;
  run.pairs = divide_up(sizes.depth, words_together);
  run.panels = divide_up(sizes.columns, panel_channels);
  run.panel = run.pairs * panel_pair;
  run.find_whole();
  const std::int64_t of_group = (sizes.rows + run.panels * panel_channels) * run.line;
  const std::int64_t together =
      std::clamp<std::int64_t>(most_words / std::max<std::int64_t>(of_group, 1), 1, groups);
  const std::int64_t most_rows =
      together > 1 ? sizes.rows
                   : std::clamp<std::int64_t>(most_words / std::max<std::int64_t>(run.line, 1),
                                              most_block_pixels, sizes.rows + most_block_pixels);
  const std::int64_t rows_together = std::min(most_rows, sizes.rows);
  Room::grow(room.lines, together * rows_together * run.line);
  Room::grow(room.line_scales, together * rows_together);
  Room::grow(room.panels, together * run.panels * run.panel);
  Room::grow(room.panel_scales, together * run.panels * panel_channels);
  for (std::int64_t group = 0; group < groups; group += together) {
    const std::int64_t some = std::min(together, groups - group);
    workers.split(some * run.panels, grain_of(run.panel, 0),
                  [&](std::int64_t from, std::int64_t to) noexcept {
                    for (std::int64_t i = from; i < to; ++i)
                      run.fill_panel(group + i / run.panels, i, i % run.panels);
                  });
    for (std::int64_t row = 0; row < sizes.rows; row += rows_together) {
      run.first_row = row, run.last_row = std::min(row + rows_together, sizes.rows);
      const std::int64_t rows = run.rows();
      const std::int64_t pieces = divide_up(rows, lines_together);
      workers.split(some * pieces, grain_of(run.line * lines_together, 0),
                    [&](std::int64_t from, std::int64_t to) noexcept {
                      for (std::int64_t i = from; i < to; ++i) {
                        const std::int64_t start = row + i % pieces * lines_together;
                        run.fill_lines(group + i / pieces, i / pieces, start,
                                       std::min(lines_together, run.last_row - start));
                      }
                    });
      const std::int64_t blocks = divide_up(rows, most_block_pixels);
      const std::int64_t products =
          std::min<std::int64_t>(rows, most_block_pixels) * sizes.columns * (run.line + 16);
      workers.split(
          some * blocks, grain_of(0, products), [&](std::int64_t from, std::int64_t to) noexcept {
            for (std::int64_t i = from; i < to; ++i) {
              const std::int64_t start = row + i % blocks * most_block_pixels;
              run.multiply(group + i / blocks, i / blocks, start,
                           std::min<std::int64_t>(most_block_pixels, run.last_row - start));
            }
          });
    }
  }
}

}  // namespace anybit::lowbit
