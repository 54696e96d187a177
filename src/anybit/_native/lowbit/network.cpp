// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "_native/isa/ieee_arithmetic.hpp"
#include "_native/isa/tiles.hpp"
#include "damage.hpp"
#include "ops/types.hpp"
#include "stage_split.hpp"
#include "tensor_stage.hpp"

namespace anybit::lowbit {

namespace {

// Minimum work of rows that a thread runs together; they share the reads of weights.
constexpr std::int64_t rows_nanoseconds = 20'000;
// Below this, saving and restoring floating-point exceptions would show in the time of a call.
constexpr std::int64_t little_nanoseconds = 5'000;
// Upper limit of estimates.
constexpr std::int64_t most_nanoseconds = 1'000'000'000;

// Packing may turn 1-bit weights into bytes and pad lines. The memory for a program is limited to
// this constant plus this multiple of its size.
constexpr std::int64_t loaded_bytes = std::int64_t{1} << 28, loaded_times = 32;

// Starts of pieces that curves are estimated for: about a microsecond each.
constexpr std::int64_t most_curve_starts = 1 << 24;

std::int64_t bytes_of(const Encoded& encoded) {
  return static_cast<std::int64_t>(encoded.words.size_bytes() + encoded.bytes.size_bytes() +
                                   encoded.integers.size_bytes() + encoded.floats.size_bytes());
}

Network::Sizes sizes_of(const Port& port) { return {port.sizes.begin(), port.sizes.end()}; }

// Makes the stage of an instruction.
class StageMaker {
 public:
  // `stages` are those of the instructions so far.
  StageMaker(const Program& program, const Plan& plan, const Stages& stages, Level level,
             const std::int64_t& most_bytes, std::int64_t& curve_starts)
      : program_(program),
        plan_(plan),
        stages_(stages),
        loops_(kernels_of<ElementLoops>(level)),
        level_(level),
        most_bytes_(most_bytes),
        curve_starts_(curve_starts) {}

  std::unique_ptr<Stage> operator()(const Quantize& at) const {
    return make_stage(at, floats(float_source(program_, at.source)), tensor(at.target),
                      at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Product& at) const {
    ProductTask task = task_of(program_, at);
    task.most_bytes = most_bytes_;
    if (const auto* const pieces = std::get_if<Piecewise>(&at.epilogue))
      task.fits_curve = has_time_for_curve(*pieces);
    if (std::holds_alternative<Arithmetic>(at.epilogue)) return make_float_product(task);
    if (const Gather* const gather = spread_of_current())
      return make_stage(task, phases_of(program_, *gather, task), at_place(gather->source),
                        at_place(at.target), level_);
    return make_stage(task, at_place(at.source), at_place(at.target), level_);
  }
  std::unique_ptr<Stage> operator()(const MatMul& at) const {
    const MatMulTask task{
        &at,        tensor(at.first), tensor(at.second), &at_place(at.first), &at_place(at.second),
        most_bytes_};
    if (!std::holds_alternative<Arithmetic>(at.epilogue))
      return make_stage(task, tensor(at.target), at_place(at.target), level_);
    const FloatNumber target = float_target(program_, at.target);
    return make_stage(task, sizes_of(program_, target), floats(target), level_);
  }
  std::unique_ptr<Stage> operator()(const Softmax& at) const {
    const FloatNumber target = float_target(program_, at.target);
    return make_stage(at, sizes_of(program_, target), floats(float_source(program_, at.source)),
                      floats(target), loops_);
  }
  std::unique_ptr<Stage> operator()(const LayerNorm& at) const {
    const FloatNumber target = float_target(program_, at.target);
    return make_stage(at, sizes_of(program_, target), floats(float_source(program_, at.source)),
                      floats(target), loops_);
  }
  std::unique_ptr<Stage> operator()(const SpatialMean& at) const {
    const FloatNumber source = float_source(program_, at.source);
    return make_stage(at, {floats(source), sizes_of(program_, source)},
                      floats(float_target(program_, at.target)), loops_);
  }
  std::unique_ptr<Stage> operator()(const BlockProduct& at) const { return make_blocks(at, {}); }
  std::unique_ptr<Stage> operator()(const AsymmetricBlockProduct& at) const {
    const BlockProduct product{at.source, at.zero,        at.target,  at.block,
                               0,         at.weight_bits, at.weights, at.scales};
    return make_blocks(product, at.zero_points);
  }
  std::unique_ptr<Stage> operator()(const MaxPool& at) const {
    return make_stage(at, at_place(at.source), at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Lookup& at) const {
    return make_stage(at, tensor(at.source), at_place(at.source), at_place(at.target), level_);
  }
  std::unique_ptr<Stage> operator()(const Combine& at) const {
    return make_stage(at, tensor(at.first), tensor(at.second), at_place(at.first),
                      at_place(at.second), at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Add& at) const {
    return make_stage(at, at_place(at.first), at_place(at.second), at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Multiply& at) const {
    return make_stage(at, at_place(at.first), at_place(at.second), at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Gather& at) const {
    if (plan_.computed_by[current()] != current()) return make_empty_stage(Gather::name);
    return make_stage(at, at_place(at.source), at_place(at.target), loops_);
  }
  std::unique_ptr<Stage> operator()(const Reshape& at) const {
    return make_stage(at, at_place(at.source), at_place(at.target));
  }
  std::unique_ptr<Stage> operator()(const Dequantize& at) const {
    return make_stage(at, tensor(at.source), at_place(at.source),
                      floats(float_target(program_, at.target)), loops_);
  }
  std::unique_ptr<Stage> operator()(const Elementwise& at) const {
    if (plan_.computed_by[current()] != current()) return make_empty_stage(Elementwise::name);
    const FloatNumber first = float_source(program_, at.first),
                      target = float_target(program_, at.target);
    return make_stage(at, sizes_of(program_, target), floats(first), second_of(at), floats(target),
                      loops_);
  }
  std::unique_ptr<Stage> operator()(const DynamicScale& at) const {
    const FloatNumber source = float_source(program_, at.source),
                      target = float_target(program_, at.target);
    return make_stage(at, {floats(source), sizes_of(program_, source)},
                      {floats(target), sizes_of(program_, target)}, loops_);
  }
  std::unique_ptr<Stage> operator()(const DynamicZero& at) const {
    const FloatNumber source = float_source(program_, at.source),
                      target = float_target(program_, at.target);
    return make_stage(at, {floats(source), sizes_of(program_, source)},
                      floats(float_source(program_, at.scale)),
                      {floats(target), sizes_of(program_, target)}, loops_);
  }
  std::unique_ptr<Stage> operator()(const DynamicQuantize& at) const {
    const FloatNumber source = float_source(program_, at.source),
                      scale = float_source(program_, at.scale);
    FloatPlace zero;
    if (at.has_zero()) zero = floats(float_source(program_, at.zero));
    return make_stage(at, {floats(source), sizes_of(program_, source)},
                      {floats(scale), sizes_of(program_, scale)}, zero, tensor(at.target),
                      at_place(at.target), loops_);
  }

 private:
  // The number of the instruction whose stage is made.
  std::size_t current() const { return stages_.size(); }

  // The Gather whose zeros the current product leaves out, or null.
  const Gather* spread_of_current() const {
    const std::size_t spread = plan_.spreads[current()];
    return spread == current() ? nullptr : &std::get<Gather>(program_.instructions[spread]);
  }

  FloatOperand second_of(const Elementwise& at) const {
    if (!at.has_second()) return {};
    const FloatNumber second = float_source(program_, at.second);
    const FloatTensor sizes = sizes_of(program_, float_target(program_, at.target)),
                      other = sizes_of(program_, second);
    return {floats(second), true, other.height * other.width < sizes.height * sizes.width,
            other.channels < sizes.channels};
  }

  // Equal pieces of many products take little memory, but each estimate takes time.
  bool has_time_for_curve(const Piecewise& pieces) const {
    constexpr std::int64_t of_estimate = 1 << 14;  // each takes as long as this number of starts
    const std::int64_t all = of_estimate + static_cast<std::int64_t>(pieces.starts.size());
    if (all > curve_starts_) return false;
    curve_starts_ -= all;
    return true;
  }

  // A product with a scale per block; zero-points are those of the blocks, or there are none.
  std::unique_ptr<Stage> make_blocks(const BlockProduct& at, Bytes zero_points) const {
    const FloatNumber target = float_target(program_, at.target);
    BlockTask task{at, zero_points, tensor(at.source), &at_place(at.source),
                   {}, false,       most_bytes_};
    if (at.has_zero()) {
      const FloatNumber zero = float_source(program_, at.zero);
      const FloatTensor sizes = sizes_of(program_, zero);
      task.zero = floats(zero), task.one_zero = sizes.height * sizes.width == 1;
    }
    return make_stage(task, {floats(target), sizes_of(program_, target)}, level_);
  }

  // A product of floats, with the steps of the instructions that it computes.
  std::unique_ptr<Stage> make_float_product(ProductTask& task) const {
    std::int64_t target = task.product->target;
    std::vector<FloatPlace> arrays;
    for (std::size_t i = current() + 1;
         i < plan_.computed_by.size() && plan_.computed_by[i] == current(); ++i) {
      const auto& at = std::get<Elementwise>(program_.instructions[i]);
      if (const FloatOperand second = second_of(at); second.is_present) {
        arrays.push_back(second.place);
        task.more.push_back({static_cast<Operation>(at.operation),
                             {},
                             true,
                             second.one_channel,
                             second.place.strides});
      }
      for (const Step& step : at.steps)
        task.more.push_back({step.kind(), step.operands, false, false, {}});
      target = at.target;
    }
    const FloatPlace to = floats(float_target(program_, target));
    if (const Gather* const gather = spread_of_current())
      return make_stage(task, phases_of(program_, *gather, task), at_place(gather->source), to,
                        std::move(arrays), level_);
    return make_stage(task, at_place(task.product->source), to, std::move(arrays), level_);
  }

  const Tensor& tensor(std::int64_t i) const { return program_.tensors[place(i)]; }
  const Place& at_place(std::int64_t i) const { return plan_.tensors[place(i)]; }
  FloatPlace floats(const FloatNumber& number) const {
    if (number.kind == FloatNumber::Kind::inner) return plan_.floats[number.index];
    const bool is_input = number.kind == FloatNumber::Kind::input;
    return {(is_input ? program_.inputs : program_.outputs)[number.index], number};
  }

  const Program& program_;
  const Plan& plan_;
  const Stages& stages_;
  const ElementLoops& loops_;
  const Level level_;
  const std::int64_t& most_bytes_;  // limit for the next stage
  std::int64_t& curve_starts_;      // limit of the starts of pieces that curves are estimated for
};

void free_aligned(std::byte* memory) { ::operator delete[](memory, std::align_val_t{alignment}); }

}  // namespace

// Memory for the tensors of a run, reused by later runs.
class Network::Scratch {
 public:
  explicit Scratch(const Network& network) : network_(network) {
    for (auto& spare : network.spare_)
      if ((memory_ = spare.exchange(nullptr, std::memory_order_acquire)) != nullptr) return;
    const auto size = static_cast<std::size_t>(network.memory() + slack);
    memory_ = static_cast<std::byte*>(::operator new[](size, std::align_val_t{alignment}));
  }
  ~Scratch() {
    for (auto& spare : network_.spare_) {
      std::byte* none = nullptr;
      if (spare.compare_exchange_strong(none, memory_, std::memory_order_release)) return;
    }
    free_aligned(memory_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::byte* memory() const { return memory_; }

 private:
  const Network& network_;
  std::byte* memory_ = nullptr;
};

// Memory for threads that run rows concurrently, allocated before they start.
class Network::Scratches {
 public:
  Scratches(const Network& network, int count) : free_(~std::uint64_t{0} >> (64 - count)) {
    for (int i = 0; i < count; ++i) all_[static_cast<std::size_t>(i)].emplace(network);
  }

  // Calls work(scratch) with exclusive scratch memory.
  template <class Work>
  void with_one(const Work& work) noexcept {
    std::uint64_t free = free_.load(std::memory_order_relaxed);
    // A host may run more pieces at a time than it reported threads: the excess waits.
    while (free == 0 || !free_.compare_exchange_weak(free, free & (free - 1))) {
      if (free == 0) std::this_thread::yield();
      free = free_.load(std::memory_order_relaxed);
    }
    const int mine = std::countr_zero(free);
    work(*all_[static_cast<std::size_t>(mine)]);
    free_.fetch_or(std::uint64_t{1} << mine);
  }

 private:
  static_assert(Workers::most_pieces == 64);
  std::array<std::optional<Scratch>, Workers::most_pieces> all_;
  std::atomic<std::uint64_t> free_;
};

struct Network::Call {
  const float* const* inputs;
  float* const* outputs;
  std::int64_t rows;
  bool backwards;
  mutable std::atomic<bool> refused_nan{false};

  Memory memory(const Scratch& scratch, std::int64_t first_row) const {
    return {scratch.memory(), inputs, outputs, first_row, backwards, &refused_nan};
  }
  void finish() const {
    if (refused_nan.load(std::memory_order_relaxed))
      throw Error(Error::Kind::value,
                  "the input has NaN, which the quantizer that reads it keeps; remove NaN before, "
                  "or run the model without compiling it");
  }
};

Network::Network(const Encoded& encoded) {
  const IeeeArithmetic ieee;
  const Program program = read_program(encoded);
  verify(program);
  const Level selected = selected_level();
  const Level level = selected == Level::amx && !gets_tiles() ? Level::avx512vpopcnt : selected;
  for (const Port& port : program.inputs) inputs_.push_back(sizes_of(port));
  for (const Port& port : program.outputs) outputs_.push_back(sizes_of(port));
  plan_ = std::make_unique<Plan>(program, level);
  std::int64_t bytes_left = loaded_bytes + loaded_times * bytes_of(encoded);
  std::int64_t curve_starts = most_curve_starts;
  const StageMaker make(program, *plan_, stages_, level, bytes_left, curve_starts);
  for (const Instruction& instruction : program.instructions) {
    stages_.push_back(std::visit(make, instruction));
    need_room(stages_.back()->bytes(), bytes_left);
    bytes_left -= stages_.back()->bytes();
    nanoseconds_per_row_ =
        std::min(most_nanoseconds, nanoseconds_per_row_ + stages_.back()->nanoseconds());
  }
}

Network::~Network() {
  for (auto& spare : spare_) free_aligned(spare);
}

// Alternates from call to call. Concurrent calls may get the same value.
bool Network::turned() const {
  const bool before = turned_.load(std::memory_order_relaxed);
  turned_.store(!before, std::memory_order_relaxed);
  return before;
}

void Network::run(const float* const* inputs, float* const* outputs, std::int64_t rows,
                  const Workers& workers) const {
  const IeeeArithmetic ieee(nanoseconds(rows) < little_nanoseconds);
  const Call call{inputs, outputs, rows, turned()};
  const int threads = nanoseconds(rows) < workers.serial_nanoseconds()
                          ? 1
                          : std::min(workers.threads(), Workers::most_pieces);
  if (threads == 1) run_rows(call, Scratch(*this), 0, rows);
  else if (rows >= 2 * threads && nanoseconds(rows) >= 2 * threads * rows_nanoseconds)
    run_in_rows(call, workers, threads);
  else run_in_stages(call, workers, threads);
  call.finish();
}

// Runs rows [first, last) in this thread.
void Network::run_rows(const Call& call, const Scratch& scratch, std::int64_t first,
                       std::int64_t last) const {
  for (std::int64_t row = first; row < last; row += plan_->rows) {
    const Memory memory = call.memory(scratch, row);
    const std::int64_t rows = std::min(plan_->rows, last - row);
    for (const auto& stage : stages_)
      stage->run(memory, {0, rows, 0, stage->lines, 0, stage->channels});
  }
}

// Runs whole networks per thread, on disjoint rows.
void Network::run_in_rows(const Call& call, const Workers& workers, int threads) const {
  const std::int64_t most =
      std::min({call.rows, std::int64_t{4} * threads, std::int64_t{Workers::most_pieces},
                nanoseconds(call.rows) / rows_nanoseconds});
  const int pieces[] = {static_cast<int>(most)};
  Scratches scratches(*this, std::min(threads, pieces[0]));
  workers.run_stages(pieces, nanoseconds(call.rows), [&](int, int piece) noexcept {
    const IeeeArithmetic ieee;
    scratches.with_one([&](const Scratch& scratch) {
      run_rows(call, scratch, call.rows * piece / most, call.rows * (piece + 1) / most);
    });
  });
}

// Runs all threads on the same rows, stage by stage.
void Network::run_in_stages(const Call& call, const Workers& workers, int threads) const {
  const Scratch scratch(*this);
  std::vector<StageSplit> splits(stages_.size());
  std::vector<int> pieces(stages_.size());
  for (std::int64_t row = 0; row < call.rows; row += plan_->rows) {
    const Memory memory = call.memory(scratch, row);
    const std::int64_t rows = std::min(plan_->rows, call.rows - row);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const std::int64_t worth = rows * stages_[i]->nanoseconds() / workers.piece_nanoseconds();
      splits[i] = StageSplit(*stages_[i], rows, std::clamp<std::int64_t>(worth, 1, threads));
      pieces[i] = splits[i].pieces();
    }
    workers.run_stages(pieces, nanoseconds(rows), [&](int stage, int piece) noexcept {
      const IeeeArithmetic ieee;
      splits[static_cast<std::size_t>(stage)].run(memory, piece);
    });
  }
}

void Network::run_timed(const float* const* inputs, float* const* outputs, std::int64_t rows,
                        double* seconds) const {
  using Clock = std::chrono::steady_clock;
  const IeeeArithmetic ieee;
  const Call call{inputs, outputs, rows, turned()};
  const Scratch scratch(*this);
  for (std::int64_t row = 0; row < rows; row += plan_->rows) {
    const Memory memory = call.memory(scratch, row);
    const std::int64_t together = std::min(plan_->rows, rows - row);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Clock::time_point start = Clock::now();
      const Stage& stage = *stages_[i];
      stage.run(memory, {0, together, 0, stage.lines, 0, stage.channels});
      seconds[i] += std::chrono::duration<double>(Clock::now() - start).count();
    }
  }
  call.finish();
}

std::vector<StageReport> Network::report() const {
  std::vector<StageReport> reports;
  for (const auto& stage : stages_) {
    const auto coding = [](const Place* at) {
      return at == nullptr ? std::string_view() : name_of(at->storage.coding);
    };
    reports.push_back({stage->name, stage->kernel(), coding(stage->source), coding(stage->target),
                       stage->bytes(), stage->multiplications});
  }
  return reports;
}

}  // namespace anybit::lowbit
