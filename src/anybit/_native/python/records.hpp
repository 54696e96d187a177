// SPDX-License-Identifier: Apache-2.0
// Layout of the records of programs in C++.
#pragma once

#include <type_traits>

#include "_native/lowbit/program.hpp"
#include "interpreter.hpp"

namespace anybit {

// Fields of a record and their kinds, as in `encoding.list_fields`.
template <class Record>
nb::list layout_of() {
  nb::list layout;
  Record record;
  record.visit([&]<class Field>(std::string_view name, Field&) {
    std::string kind;
    if constexpr (std::is_same_v<Field, std::int64_t>) kind = "integer";
    else if constexpr (std::is_same_v<Field, lowbit::Bytes>) kind = "bytes";
    else if constexpr (std::is_same_v<Field, lowbit::Integers>) kind = "integers";
    else if constexpr (std::is_same_v<Field, lowbit::Floats>) kind = "floats";
    else if constexpr (std::is_same_v<Field, lowbit::Epilogue>) kind = "epilogue";
    else if constexpr (std::is_same_v<Field, std::vector<lowbit::Instruction>>)
      kind = "instructions";
    else if constexpr (requires { Field::name; }) kind = Field::name;
    else kind = std::string(Field::value_type::name) + "s";
    layout.append(nb::make_tuple(nb::str(name.data(), name.size()), kind.c_str()));
  });
  return layout;
}

// Adds the records of a variant to the layouts, and returns their names in order.
template <class... Records>
nb::list add_family(nb::dict& layouts, std::type_identity<std::variant<Records...>>) {
  nb::list names;
  const auto add = [&]<class Record>(std::type_identity<Record>) {
    const nb::str name(Record::name.data(), Record::name.size());
    layouts[name] = layout_of<Record>();
    names.append(name);
  };
  (add(std::type_identity<Records>()), ...);
  return names;
}

// Version, records with their fields, and the order of instructions, epilogues and operations.
inline nb::dict describe_records() {
  nb::dict layouts, description;
  using lowbit::Instruction, lowbit::Epilogue;
  description["version"] = lowbit::program_version;
  description["most_levels"] = lowbit::most_levels;
  description["instructions"] = add_family(layouts, std::type_identity<Instruction>());
  description["epilogues"] = add_family(layouts, std::type_identity<Epilogue>());
  using Parts = std::variant<lowbit::Program, lowbit::Port, lowbit::Tensor, lowbit::FloatTensor,
                             lowbit::Window, lowbit::Step>;
  add_family(layouts, std::type_identity<Parts>());
  description["layouts"] = layouts;
  nb::list operations;
  for (const std::string_view name : lowbit::operation_names)
    operations.append(nb::str(name.data(), name.size()));
  description["operations"] = operations;
  return description;
}

}  // namespace anybit
