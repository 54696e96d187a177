// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <string>
#include <type_traits>

#include "damage.hpp"

namespace anybit::lowbit {

namespace {

class Reader {
 public:
  explicit Reader(const Encoded& encoded) : encoded_(encoded) {}

  Program program() {
    version_ = word();
    if (version_ < first_version || version_ > program_version)
      throw Error(
          Error::Kind::value,
          "the program of an integer region has version " + std::to_string(version_) +
              ", this library runs versions " + std::to_string(first_version) + " to " +
              std::to_string(program_version) + "; " +
              (version_ > program_version ? "install a newer anybit" : "compile the model again"));
    Program program;
    program.visit([&](std::string_view name, auto& field) {
      if (name != "floats" || version_ >= FloatTensor::since) this->read(field);
    });
    if (place_ != encoded_.words.size())
      refuse(std::to_string(encoded_.words.size() - place_) + " words too many");
    return program;
  }

 private:
  std::int64_t word() {
    if (place_ == encoded_.words.size())
      refuse("it ends after " + std::to_string(place_) + " words");
    return encoded_.words[place_++];
  }

  // Reads a count of items that take at least a word each.
  std::size_t count() {
    const std::int64_t number = word();
    const std::size_t left = encoded_.words.size() - place_;
    if (number < 0 || static_cast<std::uint64_t>(number) > left)
      refuse("a list of " + std::to_string(number) + " records in " + std::to_string(left) +
             " words");
    return static_cast<std::size_t>(number);
  }

  void read(std::int64_t& number) { number = word(); }

  template <class Element>
  void read(std::span<const Element>& array) {
    std::span<const Element> store;
    if constexpr (std::is_same_v<Element, std::uint8_t>) store = encoded_.bytes;
    else if constexpr (std::is_same_v<Element, float>) store = encoded_.floats;
    else store = encoded_.integers;
    const std::int64_t first = word(), length = word();
    const auto size = static_cast<std::int64_t>(store.size());
    if (first < 0 || length < 0 || first > size || length > size - first)
      refuse("an array of " + std::to_string(length) + " elements from " + std::to_string(first) +
             " on, of " + std::to_string(size));
    refers_to(length * static_cast<std::int64_t>(sizeof(Element)));
    array = store.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(length));
  }

  // Equal arrays share storage in the file, but count separately: what is made of them takes
  // memory.
  void refers_to(std::int64_t bytes) {
    constexpr std::int64_t usual = std::int64_t{1} << 27, times = 4;
    referred_ += bytes;
    if (referred_ > usual + times * stored())
      refuse("its instructions refer to more than " + std::to_string(times) + " times the " +
             std::to_string(stored()) + " bytes that it has");
  }
  std::int64_t stored() const {
    return static_cast<std::int64_t>(encoded_.bytes.size() + encoded_.integers.size() * 4 +
                                     encoded_.floats.size() * 4);
  }

  template <class Record>
  void read(std::vector<Record>& records) {
    for (std::size_t left = count(); left > 0; --left) read(records.emplace_back());
  }

  template <class... Records>
  void read(std::variant<Records...>& record) {
    const std::int64_t number = word();
    constexpr auto kinds = static_cast<std::int64_t>(sizeof...(Records));
    if (number < 0 || number >= kinds)
      refuse("a record of kind " + std::to_string(number) + ", there are " + std::to_string(kinds));
    std::int64_t at = 0;
    ((at++ == number ? read(record.template emplace<Records>()) : void()), ...);
  }

  template <class Record>
    requires requires { Record::name; }
  void read(Record& record) {
    if constexpr (requires { Record::since; })
      if (version_ < Record::since)
        refuse("version " + std::to_string(version_) + " has no " + std::string(Record::name));
    record.visit([this](std::string_view, auto& field) { this->read(field); });
    if constexpr (std::is_same_v<Record, Step>) check_version(record.kind());
  }

  void check_version(Operation operation) const {
    const bool is_gelu = operation == Operation::gelu;
    if ((is_gelu && version_ < gelu_since) ||
        (operation == Operation::sigmoid && version_ < sigmoid_since))
      refuse("version " + std::to_string(version_) + " has no " + (is_gelu ? "GELU" : "sigmoid"));
  }

  const Encoded& encoded_;
  std::size_t place_ = 0;
  std::int64_t version_ = 0;
  std::int64_t referred_ = 0;
};

}  // namespace

Program read_program(const Encoded& encoded) { return Reader(encoded).program(); }

}  // namespace anybit::lowbit
