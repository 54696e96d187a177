// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "damage.hpp"
#include "fused_steps.hpp"
#include "product_kernels.hpp"

namespace anybit::lowbit {

namespace {

// Tensors of the rows that run together should fit the L2 cache.
constexpr std::int64_t cached_bytes = 256 * 1024;
// More weights than this cache holds are read again for each group of rows: groups of small rows,
// such as tokens, are larger then.
constexpr std::int64_t most_cached_weights = 768 * 1024, more_cached_bytes = 704 * 1024;
constexpr std::int64_t most_small_bytes = more_cached_bytes / 16;
constexpr std::int64_t most_rows = 128;
constexpr std::int64_t most_bytes_per_row = std::int64_t{1} << 31;

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
// Clang before 17 needs the deduction guide.
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

// Votes of readers, and of gathers that fill it, on the coding of a tensor.
struct Votes {
  std::optional<Coding> product, others;
  bool bytes = false;  // readers differ, or an instruction needs bytes

  void add_product(Coding coding) {
    bytes = bytes || (product && *product != coding);
    product = coding;
  }
  // Vote of a reader that accepts every coding, and is fastest with this one.
  void add(Coding coding) { others = others && *others != coding ? Coding::bytes : coding; }

  Coding result(std::int64_t levels) const {
    const Coding coding = bytes ? Coding::bytes : product.value_or(others.value_or(Coding::bytes));
    return levels <= most_levels_of(coding) ? coding : Coding::bytes;
  }
};

void widen(Border& border, const Window& window) {
  const Border other = Border::of(window);
  border.top = std::max(border.top, other.top);
  border.left = std::max(border.left, other.left);
  border.bottom = std::max(border.bottom, other.bottom);
  border.right = std::max(border.right, other.right);
}

// First and last instruction that uses a tensor.
struct Life {
  std::size_t first = ~std::size_t{0}, last = 0, uses = 0;

  void meet(std::size_t instruction) {
    ++uses;
    first = std::min(first, instruction);
    last = std::max(last, instruction);
  }
  bool overlaps(const Life& other) const { return first <= other.last && other.first <= last; }
};

// Returns the lives of the tensors of codes, then those of floats.
std::vector<Life> lives_of(const Program& program) {
  const std::size_t tensors = program.tensors.size();
  std::vector<Life> lives(tensors + program.floats.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const auto meet = [&](std::int64_t tensor) { lives[place(tensor)].meet(i); };
    const auto meet_floats = [&](const FloatNumber& number) {
      if (number.kind == FloatNumber::Kind::inner) lives[tensors + number.index].meet(i);
    };
    const auto read = [&](std::int64_t number) { meet_floats(float_source(program, number)); };
    const auto write = [&](std::int64_t number) { meet_floats(float_target(program, number)); };
    std::visit(
        Overloaded{
            [&](const Quantize& at) { read(at.source), meet(at.target); },
            [&](const Product& at) {
              meet(at.source);
              if (std::holds_alternative<Arithmetic>(at.epilogue)) write(at.target);
              else meet(at.target);
            },
            [&](const Elementwise& at) {
              read(at.first), write(at.target);
              if (at.has_second()) read(at.second);
            },
            [&](const MatMul& at) {
              meet(at.first), meet(at.second);
              if (std::holds_alternative<Arithmetic>(at.epilogue)) write(at.target);
              else meet(at.target);
            },
            [&](const Softmax& at) { read(at.source), write(at.target); },
            [&](const LayerNorm& at) { read(at.source), write(at.target); },
            [&](const SpatialMean& at) { read(at.source), write(at.target); },
            [&](const DynamicScale& at) { read(at.source), write(at.target); },
            [&](const DynamicZero& at) { read(at.source), read(at.scale), write(at.target); },
            [&](const DynamicQuantize& at) {
              read(at.source), read(at.scale), meet(at.target);
              if (at.has_zero()) read(at.zero);
            },
            [&]<IsBlockProduct Kind>(const Kind& at) {
              meet(at.source), write(at.target);
              if (at.has_zero()) read(at.zero);
            },
            [&](const Combine& at) { meet(at.first), meet(at.second), meet(at.target); },
            [&](const Add& at) { meet(at.first), meet(at.second), meet(at.target); },
            [&](const Multiply& at) { meet(at.first), meet(at.second), meet(at.target); },
            [&](const Dequantize& at) { meet(at.source), write(at.target); },
            [&](const auto& at) { meet(at.source), meet(at.target); },
        },
        program.instructions[i]);
  }
  return lives;
}

// Moves the instructions that a product computes to the product. Floats between them need no
// memory.
void join_lives(const Program& program, const std::vector<std::size_t>& computed_by,
                std::vector<Life>& lives) {
  const auto life_of = [&](const FloatNumber& number) {
    const bool is_inner = number.kind == FloatNumber::Kind::inner;
    return is_inner ? &lives[program.tensors.size() + number.index] : nullptr;
  };
  for (std::size_t i = 0; i < computed_by.size(); ++i) {
    if (computed_by[i] == i) continue;
    if (const auto* const gather = std::get_if<Gather>(&program.instructions[i])) {
      lives[place(gather->target)] = {};
      lives[place(gather->source)].meet(computed_by[i]);
      continue;
    }
    const auto& at = std::get<Elementwise>(program.instructions[i]);
    *life_of(float_source(program, at.first)) = {};
    if (Life* const target = life_of(float_target(program, at.target)); target != nullptr)
      target->meet(computed_by[i]);
  }
}

// Returns the number of instructions that use each tensor of codes.
std::vector<std::size_t> uses_of(const Program& program) {
  const std::vector<Life> lives = lives_of(program);
  std::vector<std::size_t> uses;
  for (std::size_t i = 0; i < program.tensors.size(); ++i) uses.push_back(lives[i].uses);
  return uses;
}

// Returns the last uses of the floats that are neither inputs nor outputs.
std::vector<std::size_t> last_uses_of(const Program& program) {
  const std::vector<Life> lives = lives_of(program);
  std::vector<std::size_t> uses;
  for (std::size_t i = program.tensors.size(); i < lives.size(); ++i) uses.push_back(lives[i].last);
  return uses;
}

// Returns the size of the weights, as they are encoded.
std::int64_t weight_bytes_of(const Program& program) {
  std::size_t size = 0;
  for (const Instruction& instruction : program.instructions)
    std::visit(
        [&](const auto& at) {
          if constexpr (requires { at.weights; }) size += at.weights.size();
        },
        instruction);
  return static_cast<std::int64_t>(size);
}

}  // namespace

ProductTask task_of(const Program& program, const Product& product) {
  ProductTask task{&product, program.tensors[place(product.source)], {}};
  if (std::holds_alternative<Arithmetic>(product.epilogue)) {
    const FloatTensor sizes = sizes_of(program, float_target(program, product.target));
    task.target = {sizes.height, sizes.width, sizes.channels, 0, 1, 1};
  } else {
    task.target = program.tensors[place(product.target)];
  }
  return task;
}

SpreadProduct phases_of(const Program& program, const Gather& gather, ProductTask& task) {
  task.source = program.tensors[place(gather.source)];
  return split_product(program, gather, *task.product, task.target.channels);
}

Plan::Plan(const Program& program, Level level) : spreads(find_spreads(program, uses_of(program))) {
  choose_storage(program, level);
  computed_by = find_products_of_steps(program, last_uses_of(program));
  for (std::size_t i = 0; i < spreads.size(); ++i)
    if (spreads[i] != i) computed_by[spreads[i]] = i;
  for (const FloatTensor& tensor : program.floats) floats.emplace_back(tensor);
  lay_out(program);
  if (bytes > most_bytes_per_row)
    refuse("one row needs " + text(bytes) + " bytes of memory, more than " +
           text(most_bytes_per_row));
  const bool reads_again =
      bytes <= most_small_bytes && weight_bytes_of(program) > most_cached_weights;
  rows = std::clamp<std::int64_t>(
      (reads_again ? more_cached_bytes : cached_bytes) / std::max<std::int64_t>(bytes, 1), 1,
      most_rows);
  // Rows of a single pixel fill whole blocks of a product.
  const std::int64_t block = kernels_of<ProductKernels>(level).block_pixels;
  if (rows > block) rows = rows / block * block;
  if (rows > 1) lay_out(program);
}

namespace {

// Lets the phases of a product vote on the coding of the source of their Gather.
void vote_for_phases(const Program& program, const Gather& gather, ProductTask task, Level level,
                     Votes& votes, Border& border) {
  for (const Phase& phase : phases_of(program, gather, task).phases) {
    const Product product = product_of(phase, *task.product);
    ProductTask one = task;
    one.product = &product, one.target.height = phase.height, one.target.width = phase.width;
    votes.add_product(PackedProduct::preferred_coding(one, level));
    widen(border, product.window);
  }
}

}  // namespace

// Visits instructions from last to first: data movement prefers the coding of its target.
void Plan::choose_storage(const Program& program, Level level) {
  std::vector<Votes> votes(program.tensors.size());
  std::vector<Border> borders(program.tensors.size());
  const auto coding_of = [&](std::int64_t tensor) {
    return votes[place(tensor)].result(program.tensors[place(tensor)].levels);
  };
  for (std::size_t number = program.instructions.size(); number-- > 0;) {
    std::visit(
        Overloaded{
            [&](const Product& product) {
              const ProductTask task = task_of(program, product);
              const std::size_t spread = spreads[number];
              if (spread != number) {
                const auto& gather = std::get<Gather>(program.instructions[spread]);
                return vote_for_phases(program, gather, task, level, votes[place(gather.source)],
                                       borders[place(gather.source)]);
              }
              votes[place(product.source)].add_product(
                  PackedProduct::preferred_coding(task, level));
              widen(borders[place(product.source)], product.window);
            },
            [&](const Gather& gather) {
              const Tensor& target = program.tensors[place(gather.target)];
              const auto count = static_cast<std::int64_t>(gather.channels.size());
              if (gather.first_channel % 32 != 0 ||
                  (count % 32 != 0 && gather.first_channel + count != target.channels))
                votes[place(gather.target)].bytes = true;
            },
            [&](const MatMul& product) {
              votes[place(product.first)].bytes = votes[place(product.second)].bytes = true;
              if (!std::holds_alternative<Arithmetic>(product.epilogue))
                votes[place(product.target)].bytes = true;
            },
            [&]<IsBlockProduct Kind>(const Kind& product) {
              votes[place(product.source)].bytes = true;
            },
            [&](const MaxPool& pool) { votes[place(pool.source)].add(coding_of(pool.target)); },
            [&](const Reshape& reshape) {
              votes[place(reshape.source)].add(coding_of(reshape.target));
            },
            [](const auto&) {},
        },
        program.instructions[number]);
  }
  for (std::size_t i = 0; i < program.tensors.size(); ++i)
    tensors.push_back(
        {Storage(coding_of(static_cast<std::int64_t>(i)), program.tensors[i], borders[i]), 0});
}

// Puts each tensor, of codes or of floats, at the first offset that is free for all of its
// lifetime.
void Plan::lay_out(const Program& program) {
  std::vector<Life> lives = lives_of(program);
  join_lives(program, computed_by, lives);
  std::vector<std::size_t> order, placed;
  for (std::size_t i = 0; i < lives.size(); ++i)
    if (lives[i].first <= lives[i].last) order.push_back(i);
  const auto size_of = [&](std::size_t i) {
    const std::int64_t row =
        i < tensors.size() ? tensors[i].storage.row : floats[i - tensors.size()].row_bytes();
    return (rows * row + slack + alignment - 1) / alignment * alignment;
  };
  const auto offset_of = [&](std::size_t i) -> std::int64_t& {
    return i < tensors.size() ? tensors[i].offset : floats[i - tensors.size()].offset;
  };
  std::ranges::stable_sort(order, std::greater(), size_of);
  bytes = 0;
  for (const std::size_t i : order) {
    std::int64_t offset = 0;
    for (const std::size_t other : placed) {  // ascending
      const std::int64_t start = offset_of(other), end = start + size_of(other);
      if (!lives[i].overlaps(lives[other]) || end <= offset) continue;
      if (start >= offset + size_of(i)) break;
      offset = end;
    }
    offset_of(i) = offset;
    bytes = std::max(bytes, offset + size_of(i));
    const auto after = std::ranges::upper_bound(placed, offset, {}, offset_of);
    placed.insert(after, i);
  }
}

}  // namespace anybit::lowbit
