// SPDX-License-Identifier: Apache-2.0
// Stage of a MatMul instruction: codes of both operands are packed as numbers of 16 bits, block by
// block, and multiplied in pairs.
#include <algorithm>
#include <cstring>

#include "damage.hpp"
#include "packed_epilogue.hpp"
#include "rounded_line.hpp"
#include "scaled_steps.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// Numbers in the buffers of a thread, which are on its stack.
constexpr std::int64_t most_packed = 16 * 1024, most_row_words = 8 * 1024;
constexpr int words_together = 2;  // numbers of a pair

// Reads the codes of a view of a tensor.
class Operand {
 public:
  Operand(const Tensor& tensor, const Place& place, const Integers& view)
      : storage_(place.storage),
        lowest_(static_cast<std::int32_t>(tensor.lowest)),
        step_(static_cast<std::int32_t>(tensor.step)),
        start_(view[0]),
        group_(view[1]),
        line_(view[2]),
        depth_(view[3]),
        is_dense_(place.storage.border.empty()) {}

  // Writes `count` codes along the depth.
  void read(const std::byte* row, std::int64_t group, std::int64_t line, std::int64_t first,
            std::int64_t count, std::int16_t* to) const {
    const std::int64_t start = start_ + group * group_ + line * line_ + first * depth_;
    if (!is_dense_)
      for (std::int64_t i = 0; i < count; ++i) to[i] = number(row[offset_of(start + i * depth_)]);
    else if (depth_ == 1)
      for (std::int64_t i = 0; i < count; ++i) to[i] = number(row[start + i]);
    else
      for (std::int64_t i = 0; i < count; ++i) to[i] = number(row[start + i * depth_]);
  }

  // Writes `count` lines of two places along the depth in turns; 0 for a second one beyond the end.
  void read_pairs(const std::byte* row, std::int64_t group, std::int64_t line, std::int64_t depth,
                  bool has_second, std::int64_t count, std::int16_t* to) const {
    const std::byte* const from = row + start_ + group * group_ + line + depth * depth_;
    if (has_second)
      for (std::int64_t i = 0; i < count; ++i)
        to[2 * i] = number(from[i]), to[2 * i + 1] = number(from[i + depth_]);
    else
      for (std::int64_t i = 0; i < count; ++i) to[2 * i] = number(from[i]), to[2 * i + 1] = 0;
  }

  // Whether lines are contiguous at each place along the depth.
  bool lies_across() const { return is_dense_ && line_ == 1 && depth_ != 1; }

 private:
  std::int16_t number(std::byte index) const {
    return static_cast<std::int16_t>(lowest_ + step_ * static_cast<std::int32_t>(index));
  }
  std::int64_t offset_of(std::int64_t element) const {
    const std::int64_t pixel = element / storage_.channels;
    return storage_.offset(pixel / storage_.width, pixel % storage_.width) +
           element % storage_.channels;
  }

  const Storage& storage_;
  const std::int32_t lowest_, step_;
  const std::int64_t start_, group_, line_, depth_;
  const bool is_dense_;
};

// Columns of a group that are adjacent channels of the target.
struct Columns {
  std::int64_t group, first, count;
  std::int64_t channel;  // in the chunk
  std::int64_t panel;    // the first one

  std::int64_t panels() const { return (count + panel_channels - 1) / panel_channels; }
};

class MatMulStage final : public Stage {
 public:
  MatMulStage(const MatMulTask& task, std::int64_t lines_, std::int64_t width,
              std::int64_t channels_, std::int64_t levels, const Place* to,
              const FloatPlace& floats, Level level)
      : kernels_(kernels_of<ProductKernels>(level)),
        first_(task.first, *task.first_place, task.product->first_view),
        second_(task.second, *task.second_place, task.product->second_view),
        second_place_(*task.second_place),
        floats_(floats),
        rows_(task.product->rows),
        columns_(task.product->columns),
        depth_(task.product->depth),
        width_(width),
        levels_(levels),
        merges_(task.product->merges != 0) {
    name = MatMul::name;
    source = task.first_place, target = to;
    lines = lines_, channels = channels_, by_channels = true;
    elements = lines * width * channels;
    channels_of_sum = depth_;
    multiplications = elements * depth_;
    make_epilogue(task.product->epilogue, task.most_bytes);
  }

  std::string kernel() const override { return "words"; }
  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(
        scales_.bytes() + epilogue_.thresholds.bytes() + epilogue_.buckets.codes.bytes() +
        epilogue_.packed.entries.bytes() + epilogue_.piece_codes.bytes() +
        epilogue_.entries.size() + epilogue_.operands.size() * epilogue_.gains.bytes());
  }

  void run(const Memory& memory, const Part& part) const override {
    if (target != nullptr) start_rows(*target, memory, part);
    for (std::int64_t row = part.first_row; row < part.last_row; ++row)
      for (std::int64_t chunk = part.first_channel; chunk < part.last_channel;
           chunk += chunk_channels) {
        Block block{memory, row, chunk,
                    std::min<std::int64_t>(chunk_channels, part.last_channel - chunk)};
        run_chunk(block, part.first_line * width_, part.last_line * width_);
      }
  }

 private:
  struct Block {
    const Memory& memory;
    std::int64_t row, chunk, channels;  // of the batch; first channel and their number
    std::int64_t group = 0;             // of the rows
    std::int64_t piece_count = 0, panels = 0;
    Columns pieces[chunk_channels] = {};
  };

  void make_epilogue(const Epilogue& epilogue, std::int64_t most_bytes) {
    if (const auto* const scaled = std::get_if<Scaled>(&epilogue)) {
      need_room(channels * levels_ * 4, most_bytes);
      const ScaledSteps steps(*scaled, levels_);
      return make_epilogue(steps.epilogue(), most_bytes);
    }
    epilogue_ = pack_epilogue(epilogue, channels, levels_, most_bytes);
    const bool has_pieces = epilogue_.kind == EpilogueKind::pieces;
    const bool compares = has_pieces || epilogue_.kind == EpilogueKind::thresholds ||
                          epilogue_.kind == EpilogueKind::many_thresholds;
    const std::int64_t padded = (channels + chunk_channels - 1) / chunk_channels * chunk_channels;
    scales_ = Aligned<std::int32_t>(padded);
    constants_ = Aligned<std::int32_t>(padded);
    std::fill_n(scales_.data(), padded, compares ? 0 : 1);
    if (compares) {
      const auto* const thresholds = std::get_if<Thresholds>(&epilogue);
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        const std::int64_t sign =
            thresholds == nullptr ? 1 : thresholds->directions[static_cast<std::size_t>(channel)];
        fold_into_thresholds(epilogue_, channel, has_pieces ? most_pieces - 1 : levels_ - 1, sign,
                             0);
        scales_[channel] = sign < 0 ? -1 : 0;
      }
      settling_ = Settling::raw;
      if (kernels_.epilogues[static_cast<std::size_t>(EpilogueKind::packed_steps)] != nullptr)
        pack_steps(epilogue_, channels, levels_, most_bytes);
    }
    if (target != nullptr) pack_pieces(epilogue_, channels, most_bytes);
    make_buckets(epilogue_, channels, levels_);
    fit_lines(epilogue_, channels, levels_);
    fit_rounded_lines(epilogue_, channels, levels_);
    check_saturation(epilogue_, channels, levels_);
  }

  // Fills the channels of a chunk of pixels [first, last).
  void run_chunk(Block& block, std::int64_t first, std::int64_t last) const {
    if (merges_) {
      plan_pieces(block);
      return run_rows(block, first, last, 0);
    }
    for (std::int64_t pixel = first; pixel < last;) {
      block.group = pixel / rows_;
      const std::int64_t start = block.group * rows_, end = std::min(last, start + rows_);
      plan_pieces(block);
      run_rows(block, pixel, end, start);
      pixel = end;
    }
  }

  void plan_pieces(Block& block) const {
    block.piece_count = block.panels = 0;
    for (std::int64_t channel = 0; channel < block.channels;) {
      Columns& piece = block.pieces[block.piece_count++];
      const std::int64_t column = block.chunk + channel;
      piece.group = merges_ ? column / columns_ : block.group;
      piece.first = merges_ ? column % columns_ : column;
      piece.count = std::min(columns_ - piece.first, block.channels - channel);
      piece.channel = channel, piece.panel = block.panels;
      block.panels += piece.panels(), channel += piece.count;
    }
  }

  // Computes pixels [first, last), whose rows are counted from pixel `start`.
  void run_rows(const Block& block, std::int64_t first, std::int64_t last,
                std::int64_t start) const {
    // Panels at the end of a group are written whole; the next group overwrites the excess.
    constexpr std::ptrdiff_t stride = chunk_channels + panel_channels;
    alignas(64) std::int32_t sums[most_block_pixels * stride];
    alignas(64) std::int16_t packed[most_packed];
    const std::int64_t most_depth =
        most_packed / (block.panels * panel_channels * words_together) * words_together;
    const bool once = depth_ <= most_depth;
    if (once) pack_columns(block, 0, depth_, packed);
    for (std::int64_t pixel = first; pixel < last; pixel += most_block_pixels) {
      const auto count = static_cast<int>(std::min<std::int64_t>(most_block_pixels, last - pixel));
      for (std::int64_t depth = 0; depth < depth_; depth += most_depth) {
        const std::int64_t here = std::min(most_depth, depth_ - depth);
        if (!once) pack_columns(block, depth, here, packed);
        for (std::int64_t i = 0; i < block.piece_count; ++i)
          add_sums(block, block.pieces[i], {pixel - start, count, depth, here}, packed,
                   sums + block.pieces[i].channel, stride);
      }
      finish(block, pixel, count, sums, stride);
    }
  }

  struct Span {
    std::int64_t row;
    int count;
    std::int64_t depth, length;
  };

  static std::int64_t pairs_of(std::int64_t length) {
    return (length + words_together - 1) / words_together;
  }

  // Packs the columns of all pieces: pairs along the depth, 16 columns side by side.
  void pack_columns(const Block& block, std::int64_t depth, std::int64_t length,
                    std::int16_t* to) const {
    const std::byte* const from = second_place_.row(block.memory, block.row);
    const std::int64_t panel = pairs_of(length) * panel_channels * words_together;
    for (std::int64_t i = 0; i < block.piece_count; ++i) {
      const Columns& piece = block.pieces[i];
      for (std::int64_t column = 0; column < piece.count; column += panel_channels) {
        const std::int64_t some = std::min<std::int64_t>(panel_channels, piece.count - column);
        std::int16_t* const own = to + (piece.panel + column / panel_channels) * panel;
        if (some < panel_channels) std::fill_n(own, panel, std::int16_t{0});
        pack_panel(from, piece.group, piece.first + column, some, depth, length, own);
      }
    }
  }

  void pack_panel(const std::byte* from, std::int64_t group, std::int64_t column,
                  std::int64_t count, std::int64_t depth, std::int64_t length,
                  std::int16_t* to) const {
    constexpr std::int64_t pair_row = panel_channels * words_together;
    const std::int64_t pairs = pairs_of(length);
    if (second_.lies_across()) {
      for (std::int64_t k = 0; k < pairs; ++k, to += pair_row)
        second_.read_pairs(from, group, column, depth + 2 * k, 2 * k + 1 < length, count, to);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i, to += words_together) {
      std::int16_t line[most_packed / panel_channels + 1];
      line[length] = 0;
      second_.read(from, group, column + i, depth, length, line);
      for (std::int64_t k = 0; k < pairs; ++k)
        std::memcpy(to + k * pair_row, line + 2 * k, words_together * sizeof *to);
    }
  }

  // Adds the products of some rows with the columns of a piece, from the first place of the depth
  // on.
  void add_sums(const Block& block, const Columns& piece, const Span& span,
                const std::int16_t* packed, std::int32_t* sums, std::ptrdiff_t stride) const {
    const std::int64_t pairs = pairs_of(span.length), line = pairs * words_together;
    alignas(64) std::int16_t words[most_row_words];
    const std::byte* pixels[most_block_pixels];
    alignas(64) std::int32_t more[most_block_pixels * (chunk_channels + panel_channels)];
    const std::ptrdiff_t segment = 0;
    SumBlock sum{};
    sum.pixels = pixels, sum.segments = &segment, sum.segment_count = 1;
    sum.steps = static_cast<int>(pairs);
    sum.weights = reinterpret_cast<const std::byte*>(packed + piece.panel * line * panel_channels);
    sum.panel = line * panel_channels * static_cast<std::int64_t>(sizeof(std::int16_t));
    sum.panels = static_cast<int>(piece.panels());
    sum.stride = stride, sum.fresh_weights = true;
    const std::byte* const from = source->row(block.memory, block.row);
    const auto most_rows =
        static_cast<int>(std::min<std::int64_t>(most_block_pixels, most_row_words / line));
    for (int done = 0; done < span.count; done += sum.count) {
      sum.count = std::min(most_rows, span.count - done);
      for (int i = 0; i < sum.count; ++i) {
        std::int16_t* const own = words + i * line;
        own[line - 1] = 0;
        first_.read(from, piece.group, span.row + done + i, span.depth, span.length, own);
        pixels[i] = reinterpret_cast<const std::byte*>(own);
      }
      std::int32_t* const to = sums + done * stride;
      sum.sums = span.depth == 0 ? to : more;
      kernels_.words(sum);
      if (span.depth == 0) continue;
      for (int i = 0; i < sum.count; ++i)
        for (std::int64_t c = 0; c < piece.count; ++c) to[i * stride + c] += more[i * stride + c];
    }
  }

  // Applies the epilogue to the sums of pixels.
  void finish(const Block& block, std::int64_t first, int count, const std::int32_t* sums,
              std::ptrdiff_t stride) const {
    std::byte* targets[most_block_pixels];
    float* outputs[most_block_pixels];
    const std::int32_t* constants[most_block_pixels];
    const std::int32_t addends[most_block_pixels] = {};
    std::fill_n(constants, count, constants_.data());
    const Coding coding = target != nullptr ? target->storage.coding : Coding::bytes;
    EpilogueBlock then = make_epilogue_block(epilogue_, coding, levels_);
    then.settling = settling_, then.float_channel = floats_.strides.channel;
    then.sums = sums, then.stride = stride, then.count = count;
    then.channels = static_cast<int>(block.channels), then.scales = scales_.data() + block.chunk;
    then.targets = targets, then.floats = outputs;
    then.constants = constants, then.addends = addends;
    set_chunk(then, epilogue_, block.chunk);
    for (int i = 0; i < count; ++i) {
      const std::int64_t pixel = first + i;
      if (target != nullptr)
        targets[i] = target->row(block.memory, block.row) +
                     target->storage.offset(pixel / width_, pixel % width_) + block.chunk;
      else
        outputs[i] = floats_.write(block.memory, block.row) + pixel * floats_.strides.pixel +
                     block.chunk * floats_.strides.channel;
    }
    kernels_.epilogues[static_cast<std::size_t>(epilogue_.kind)](then);
  }

  const ProductKernels& kernels_;
  const Operand first_, second_;
  const Place& second_place_;
  const FloatPlace floats_;
  const std::int64_t rows_, columns_, depth_, width_, levels_;
  const bool merges_;
  PackedEpilogue epilogue_;
  Aligned<std::int32_t> scales_, constants_;
  Settling settling_ = Settling::bare;
};

}  // namespace

std::unique_ptr<Stage> make_stage(const MatMulTask& task, const Tensor& tensor, const Place& target,
                                  Level level) {
  return std::make_unique<MatMulStage>(task, tensor.height, tensor.width, tensor.channels,
                                       tensor.levels, &target, FloatPlace(), level);
}

std::unique_ptr<Stage> make_stage(const MatMulTask& task, const FloatTensor& tensor,
                                  const FloatPlace& target, Level level) {
  return std::make_unique<MatMulStage>(task, tensor.height, tensor.width, tensor.channels, 1,
                                       nullptr, target, level);
}

}  // namespace anybit::lowbit
