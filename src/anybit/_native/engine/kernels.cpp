// SPDX-License-Identifier: Apache-2.0
// Loops of the operators. Compiled once per ISA level, see kernel_loops.hpp.
#include "kernels.hpp"

#include "half.hpp"
#include "kernel_loops.hpp"
#include "ops/operators.hpp"
#include "ops/powers.hpp"

namespace anybit::ANYBIT_ISA {
namespace {

template <class Op, class T, int variant, bool uniform, std::size_t... column>
[[gnu::always_inline]] inline void apply_row(const T* x, auto* out, std::int64_t length,
                                             const T* prepared, std::int64_t plane,
                                             std::index_sequence<column...>) {
  if constexpr (uniform) {
    const T parameters[] = {prepared[static_cast<std::int64_t>(column) * plane]...};
    for_each_element(length, [&](std::int64_t i) {
      out[i] = Op::template apply<variant>(x[i], parameters[column]...);
    });
  } else if constexpr (varying_columns<Op> < sizeof...(column)) {
    const T same[] = {prepared[static_cast<std::int64_t>(column) * plane]...};
    for_each_element(length, [&](std::int64_t i) {
      out[i] = Op::template apply<variant>(
          x[i],
          (column < varying_columns<Op> ? prepared[static_cast<std::int64_t>(column) * plane + i]
                                        : same[column])...);
    });
  } else {
    for_each_element(length, [&](std::int64_t i) {
      out[i] = Op::template apply<variant>(
          x[i], prepared[static_cast<std::int64_t>(column) * plane + i]...);
    });
  }
}

template <class Op, class T, int variant, bool uniform>
void apply(const Rows& rows) {
  constexpr auto all = std::make_index_sequence<columns<Op, T, false>>{};
  using Result = decltype([]<std::size_t... c>(std::index_sequence<c...>) {
    return Op::template apply<variant>(T(), (static_cast<void>(c), T())...);
  }(all));
  const char* x = static_cast<const char*>(rows.x);
  char* out = static_cast<char*>(rows.out);
  const T* prepared = static_cast<const T*>(rows.prepared);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    apply_row<Op, T, variant, uniform>(reinterpret_cast<const T*>(x),
                                       reinterpret_cast<Result*>(out), rows.length, prepared,
                                       rows.plane, all);
    x += rows.x_step;
    out += rows.out_step;
    prepared += rows.prepared_step;
  }
}

// The order of magnitudes is that of their bits, with NaN above infinity.
template <class T>
[[gnu::always_inline]] inline typename Layout<T>::Bits magnitude_bits(T x) {
  return std::bit_cast<typename Layout<T>::Bits>(x) &
         std::numeric_limits<typename Layout<T>::Bits>::max();
}

template <class T>
[[gnu::always_inline]] inline T largest_magnitude(const T* x, std::int64_t count) {
  typename Layout<T>::Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = at_least(magnitude_bits(x[i]), largest);
  return std::bit_cast<T>(largest);
}

template <class T>
void reduce_all(const void* x, std::int64_t count, void* magnitudes) {
  T& magnitude = *static_cast<T*>(magnitudes);
  const T parts[] = {magnitude, largest_magnitude(static_cast<const T*>(x), count)};
  magnitude = largest_magnitude(parts, 2);
}

// Elements of a row whose magnitudes stay in registers.
template <class T>
constexpr std::int64_t reduced_together = 256 / sizeof(T);

template <class T>
[[gnu::always_inline]] inline void reduce_columns(const char* x, auto count, std::int64_t rows,
                                                  std::int64_t step, T* magnitudes) {
  using Bits = typename Layout<T>::Bits;
  Bits largest[reduced_together<T>];
  for (std::int64_t i = 0; i < count; ++i) largest[i] = std::bit_cast<Bits>(magnitudes[i]);
  for (std::int64_t row = 0; row < rows; ++row, x += step) {
    const T* const from = reinterpret_cast<const T*>(x);
    for (std::int64_t i = 0; i < count; ++i)
      largest[i] = at_least(magnitude_bits(from[i]), largest[i]);
  }
  for (std::int64_t i = 0; i < count; ++i) magnitudes[i] = std::bit_cast<T>(largest[i]);
}

template <class T>
void reduce_rows(const void* x, std::int64_t count, std::int64_t rows, std::int64_t step,
                 void* magnitudes) {
  constexpr std::integral_constant<std::int64_t, reduced_together<T>> most;
  const char* from = static_cast<const char*>(x);
  T* to = static_cast<T*>(magnitudes);
  for (; count >= most; count -= most) {
    reduce_columns(from, most, rows, step, to);
    from += most * static_cast<std::int64_t>(sizeof(T));
    to += most;
  }
  reduce_columns(from, count, rows, step, to);
}

// Blocks whose parameters are prepared together, in vectors.
constexpr std::int64_t batch = 16;

template <class Op, class T>
struct Batch {
  alignas(64) T magnitudes[batch];
  alignas(64) T prepared[columns<Op, T, false>][batch];
};

template <class Op, class T, int variant>
[[gnu::always_inline]] inline void apply_batch(const typename Op::Attributes& attributes,
                                               const void* const* gathered, Batch<Op, T>& all,
                                               const T* x, T* out, std::int64_t blocks, auto size) {
  for (std::int64_t b = 0; b < blocks; ++b)
    all.magnitudes[b] = largest_magnitude(x + b * size, size);
  for_each_element(batch, [&](std::int64_t b) {
    const auto one = prepared_at<Op, T, variant, false>(attributes, gathered, b, Parameters<Op>{});
    for (std::size_t column = 0; column < one.size(); ++column)
      all.prepared[column][b] = one[column];
  });
  for (std::int64_t b = 0; b < blocks; ++b)
    apply_row<Op, T, variant, true>(x + b * size, out + b * size, size, &all.prepared[0][b], batch,
                                    std::make_index_sequence<columns<Op, T, false>>{});
}

template <class Op, class T, int variant>
void apply_blocks(const BlockRow& row) {
  const auto attributes = *static_cast<const typename Op::Attributes*>(row.attributes);
  const T* const x = static_cast<const T*>(row.x);
  T* const out = static_cast<T*>(row.out);
  Batch<Op, T> all{};
  T repeated[Op::inputs.size()][batch];
  const void* gathered[Op::inputs.size()] = {all.magnitudes};
  for (std::size_t i = 1; i < Op::inputs.size(); ++i) {
    for (T& value : repeated[i]) value = *static_cast<const T*>(row.gathered[i]);
    gathered[i] = repeated[i];
  }
  for (std::int64_t first = 0, blocks, size; first < row.length; first += blocks * size) {
    const std::int64_t rest = row.length - first;
    size = rest < row.block ? rest : row.block;
    blocks = clamped(rest / size, std::int64_t{1}, batch);
    const auto apply = [&](auto block) __attribute__((always_inline)) {
      apply_batch<Op, T, variant>(attributes, gathered, all, x + first, out + first, blocks, block);
    };
    // The usual sizes are constants, so that the loops over a block are unrolled.
    if (size == 32) apply(std::integral_constant<std::int64_t, 32>{});
    else if (size == 16) apply(std::integral_constant<std::int64_t, 16>{});
    else apply(size);
  }
}

template <class Op, class T, int... variant>
const ApplyBlocks* block_loops() {
  if constexpr (BlockReduction<Op>) {
    static constexpr ApplyBlocks loops[] = {apply_blocks<Op, T, variant>...};
    return loops;
  } else return nullptr;
}

template <class Op, class T>
Kernel kernel_of() {
  static_assert(Op::inputs.size() <= max_inputs && columns<Op, T, false> <= max_columns);
  return []<int... variant>(std::integer_sequence<int, variant...>) {
    static constexpr auto prepares =
        prepares_of<Op, T, false>(std::integer_sequence<int, variant...>{});
    static constexpr Apply uniforms[] = {apply<Op, T, variant, true>...};
    static constexpr Apply varyings[] = {apply<Op, T, variant, false>...};
    return Kernel{{static_cast<int>(columns<Op, T, false>), prepares.data()},
                  uniforms,
                  varyings,
                  block_loops<Op, T, variant...>()};
  }(std::make_integer_sequence<int, Op::variants>{});
}

Kernel kernel(int operator_index, bool float64) {
  Kernel kernel{};
  int index = 0;
  Operators::for_each([&]<class Op>() {
    if (index++ == operator_index)
      kernel = float64 ? kernel_of<Op, double>() : kernel_of<Op, float>();
  });
  return kernel;
}

// Memory formats of element types, in the order of ElementType.
using AllStored = std::tuple<float, double, std::uint16_t, std::uint16_t, std::int8_t, std::int16_t,
                             std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                             std::uint64_t, std::uint8_t>;
template <ElementType type>
using Stored = std::tuple_element_t<static_cast<std::size_t>(type), AllStored>;

template <ElementType type, class T>
[[gnu::always_inline]] inline T decoded(Stored<type> stored) {
  if constexpr (type == ElementType::float16) return from_float16(stored);
  else if constexpr (type == ElementType::bfloat16) return from_bfloat16(stored);
  else if constexpr (type == ElementType::boolean) return stored != 0 ? T(1) : T(0);
  else return static_cast<T>(stored);
}

template <ElementType type, class T>
[[gnu::always_inline]] inline Stored<type> encoded(T value) {
  if constexpr (type == ElementType::float16) return to_float16(static_cast<float>(value));
  else if constexpr (type == ElementType::bfloat16) return to_bfloat16(static_cast<float>(value));
  else return static_cast<Stored<type>>(value);
}

template <ElementType type, class T>
void load(const void* x, std::int64_t stride, std::int64_t count, void* out) {
  using S = Stored<type>;
  if (stride == static_cast<std::int64_t>(sizeof(S))) {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<T*>(out)[i] = decoded<type, T>(static_cast<const S*>(x)[i]);
    return;
  }
  const char* next = static_cast<const char*>(x);
  for (std::int64_t i = 0; i < count; ++i, next += stride)
    static_cast<T*>(out)[i] = decoded<type, T>(*reinterpret_cast<const S*>(next));
}

template <ElementType type, class From>
void store(const void* x, std::int64_t count, void* out, std::int64_t stride) {
  using S = Stored<type>;
  if (stride == static_cast<std::int64_t>(sizeof(S))) {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<S*>(out)[i] = encoded<type>(static_cast<const From*>(x)[i]);
    return;
  }
  char* next = static_cast<char*>(out);
  for (std::int64_t i = 0; i < count; ++i, next += stride)
    *reinterpret_cast<S*>(next) = encoded<type>(static_cast<const From*>(x)[i]);
}

template <ElementType type, class T>
constexpr Store store_for() {
  // Integer results are stored as they are, floating results from the compute type.
  if constexpr (is_floating(type)) return store<type, T>;
  else if constexpr (is_result(type)) return store<type, Stored<type>>;
  else return nullptr;
}

template <int... type>
constexpr auto loads(std::integer_sequence<int, type...>) {
  return std::array<std::array<Load, 2>, element_type_count>{
      {{load<ElementType{type}, float>, load<ElementType{type}, double>}...}};
}

template <int... type>
constexpr auto stores(std::integer_sequence<int, type...>) {
  return std::array<std::array<Store, 2>, element_type_count>{
      {{store_for<ElementType{type}, float>(), store_for<ElementType{type}, double>()}...}};
}

constexpr KernelSet all{kernel,
                        loads(std::make_integer_sequence<int, element_type_count>{}),
                        stores(std::make_integer_sequence<int, element_type_count>{}),
                        {reduce_all<float>, reduce_all<double>},
                        {reduce_rows<float>, reduce_rows<double>}};

}  // namespace
}  // namespace anybit::ANYBIT_ISA

template <>
const anybit::KernelSet& anybit::compiled<anybit::KernelSet, anybit::Level::ANYBIT_ISA>() {
  return ANYBIT_ISA::all;
}
