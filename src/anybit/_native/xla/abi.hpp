// SPDX-License-Identifier: Apache-2.0
// The part of XLA's FFI C ABI that a handler needs, under its own names: no package has its headers
// at build time. Structs begin with their size, which tells how much of it the host has; members
// are only appended (XLA's xla/ffi/api/c_api.h, major version 0). The layout below is that of
// jaxlib 0.5.0 (version 0.1) to 0.10.2 (version 0.3).
#pragma once

#include <cstddef>
#include <cstdint>

namespace anybit::xla {

// Handles: only ever seen through pointers.
struct HostError;
struct Context;
struct InternalApi;
struct Future;

struct Extension {
  std::size_t struct_size;
  std::int32_t type;
  Extension* next;
};
inline constexpr std::int32_t metadata_extension = 1;

// Common beginning of all structs.
struct Header {
  std::size_t struct_size;
  Extension* extensions;
};

struct ApiVersion {
  Header header;
  std::int32_t major;
  std::int32_t minor;
};

// The numbers are those of XLA's PrimitiveType.
enum class DataType : std::int32_t {
  boolean = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  uint8 = 6,
  uint16 = 7,
  uint32 = 8,
  uint64 = 9,
  float16 = 10,
  float32 = 11,
  float64 = 12,
  bfloat16 = 16,
};

enum class ErrorCode : std::int32_t { invalid_argument = 3, internal = 13 };

struct CreateErrorArguments {
  Header header;
  const char* message;
  ErrorCode code;
};

// The first slots; the table continues.
struct Api {
  Header header;
  ApiVersion version;
  const InternalApi* internal;
  HostError* (*create_error)(CreateErrorArguments* arguments);
};

struct Buffer {
  Header header;
  DataType type;
  void* data;
  std::int64_t rank;
  const std::int64_t* sizes;
};

struct Text {
  const char* characters;
  std::size_t length;
};

struct Scalar {
  DataType type;
  const void* value;
};

enum class AttributeType : std::int32_t { array = 1, dictionary = 2, scalar = 3, string = 4 };
inline constexpr std::int32_t buffer_operand = 1;

// Arguments and results.
struct Operands {
  Header header;
  std::int64_t size;
  const std::int32_t* types;
  void** values;
};

struct Attributes {
  Header header;
  std::int64_t size;
  const AttributeType* types;
  const Text* const* names;
  void** values;
};

enum class Stage : std::int32_t { instantiate = 0, prepare = 1, initialize = 2, execute = 3 };

struct CallFrame {
  Header header;
  const Api* api;
  Context* context;
  Stage stage;
  Operands arguments;
  Operands results;
  Attributes attributes;
  Future* future;
};

// Properties that a handler reports when called with the metadata extension. Version 0.2 added the
// id of a state's type.
struct Metadata {
  std::size_t struct_size;
  ApiVersion version;
  std::uint32_t traits;
  std::int64_t state_type;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

using Handler = HostError*(CallFrame* frame);

static_assert(sizeof(void*) == 8 && sizeof(std::size_t) == 8);
static_assert(sizeof(Extension) == 24 && sizeof(Header) == 16 && sizeof(ApiVersion) == 24);
static_assert(sizeof(CreateErrorArguments) == 32 && offsetof(CreateErrorArguments, code) == 24);
static_assert(offsetof(Api, version) == 16 && offsetof(Api, create_error) == 48);
static_assert(sizeof(Buffer) == 48 && offsetof(Buffer, data) == 24);
static_assert(sizeof(Scalar) == 16 && sizeof(Text) == 16);
static_assert(sizeof(Operands) == 40 && sizeof(Attributes) == 48);
static_assert(offsetof(CallFrame, stage) == 32 && offsetof(CallFrame, arguments) == 40);
static_assert(offsetof(CallFrame, results) == 80 && offsetof(CallFrame, attributes) == 120);
static_assert(offsetof(CallFrame, future) == 168 && sizeof(CallFrame) == 176);
static_assert(offsetof(Metadata, traits) == 32 && offsetof(Metadata, state_type) == 40);
static_assert(offsetof(MetadataExtension, metadata) == 24);

}  // namespace anybit::xla
