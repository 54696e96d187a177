// SPDX-License-Identifier: Apache-2.0
// Errors for damaged programs.
#pragma once

#include <string>

#include "ops/types.hpp"

namespace anybit::lowbit {

[[noreturn]] inline void refuse(const std::string& fault) {
  throw Error(Error::Kind::value, "the program of an integer region is damaged: " + fault +
                                      "; compile the model again");
}

// Formats a number for messages.
inline std::string text(std::int64_t number) { return std::to_string(number); }

// Throws unless lowest <= number <= highest.
inline void need(std::int64_t number, std::int64_t lowest, std::int64_t highest, const char* name) {
  if (number >= lowest && number <= highest) return;
  const std::string range =
      lowest == highest ? text(lowest) : "from " + text(lowest) + " to " + text(highest);
  refuse(std::string(name) + " must be " + range + ", got " + text(number));
}

// Throws unless an array has the expected number of elements.
inline void need_size(std::size_t size, std::int64_t expected, const char* name) {
  if (static_cast<std::int64_t>(size) != expected)
    refuse(std::string(name) + " must have " + text(expected) + " elements, got " +
           text(static_cast<std::int64_t>(size)));
}

// Throws unless an array has one set of elements for all channels, or one per channel.
inline void need_size(std::size_t size, std::int64_t together, std::int64_t channels,
                      const char* name) {
  const auto actual = static_cast<std::int64_t>(size);
  if (actual != together && actual != together * channels)
    refuse(std::string(name) + " must have " + text(together) + " or " + text(together * channels) +
           " elements, got " + text(actual));
}

// Throws if the memory for an instruction is out of proportion to the program.
inline void need_room(std::int64_t bytes, std::int64_t most) {
  if (bytes > most)
    refuse("it takes more than " + text(most) + " bytes of memory to load, at least " +
           text(bytes) + " for one instruction");
}

template <class Array>
void need_within(const Array& array, std::int64_t lowest, std::int64_t highest, const char* name) {
  for (const auto value : array) need(value, lowest, highest, name);
}

}  // namespace anybit::lowbit
