// Operators. One boxed fallback gives all of torch's: shapes from the meta device, memory from the
// allocator, and later, in the stream's thread, the CPU's kernel on that memory.
#pragma once
#include "memory.h"
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

namespace sim {

uint64_t draw();                                     // from the current device's generator

inline bool is_here(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }
inline const void* start_of(const at::Tensor& tensor) { return tensor.storage().data(); }

struct OnDevice {                                    // makes a tensor's device the current one
  int before = current_device;
  explicit OnDevice(int device) { current_device = device; }
  ~OnDevice() { current_device = before; }
};

// A tensor's memory, without its counts of references: to be seen as a CPU tensor later.
struct Flat {
  void* memory = nullptr;
  std::vector<int64_t> sizes, strides;
  at::ScalarType type{};
  bool is_number = false, exists = false;
};
inline Flat flat(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number(), true};
}
inline at::Tensor seen(const Flat& flat) {
  if (!flat.exists) return at::Tensor();
  auto tensor = at::from_blob(flat.memory, flat.sizes, flat.strides, at::TensorOptions().dtype(flat.type));
  if (flat.is_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// An argument, as the kernel will get it.
enum class Kind { value, tensor, list, optionals };
struct Argument { Kind kind = Kind::value; c10::IValue value; std::vector<Flat> tensors; };

// What a schema tells of an operator.
struct Known { std::string name; int generator = -1; std::vector<bool> writes; };
inline const Known& known(const c10::OperatorHandle& op) {
  static std::map<const c10::FunctionSchema*, Known> all;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const auto& schema = op.schema();
  auto [found, is_new] = all.try_emplace(&schema);
  Known& known = found->second;
  if (!is_new) return known;
  known.name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  const auto& arguments = schema.arguments();
  bool normalizes = known.name.find("batch_norm") != std::string::npos &&
      known.name.find("backward") == std::string::npos;
  for (size_t i = 0; i < arguments.size(); i++) {
    bool writes = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    // The schema of batch norms does not tell that they change their running statistics.
    known.writes.push_back(writes || (normalizes && arguments[i].name().rfind("running_", 0) == 0));
    if (arguments[i].type()->str().find("Generator") != std::string::npos) known.generator = (int)i;
  }
  return known;
}

// One call of an operator: what is known when the host issues it.
struct Call {
  const c10::OperatorHandle& op;
  const Known& about;
  std::vector<c10::IValue> given;
  std::vector<Argument> arguments;
  std::vector<Place> places;
  torch::jit::Stack shapes;                          // its arguments on the meta device
  bool draws = false;

  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op(op), about(known(op)), given(torch::jit::last(*stack, op.schema().arguments().size()).vec()) {
    for (size_t i = 0; i < given.size(); i++) take(given[i], about.writes[i], (int)i == about.generator);
  }
  // Whether all that it returns is what it writes, whose sizes are known.
  bool is_in_place() const {
    if (op.schema().returns().empty()) return false;
    for (auto& each : op.schema().returns()) if (!each.alias_info()) return false;
    for (size_t i = 0; i < given.size(); i++)
      if (about.writes[i] && !(given[i].isTensor() && given[i].toTensor().numel() > 0)) return false;
    return true;
  }

 private:
  at::Tensor shape_of(const at::Tensor& tensor, bool writes, Argument& argument) {
    if (!tensor.defined()) { argument.tensors.push_back({}); return tensor; }
    if (is_here(tensor)) {
      argument.tensors.push_back(flat(tensor));
      places.push_back({start_of(tensor), writes});
    } else {                                         // a number of the host's: its value now
      argument.value = tensor.clone();
      argument.tensors.push_back(flat(argument.value.toTensor()));
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) argument.tensors.back().is_number = true;
      if (tensor.dim() == 0) return tensor;          // meta kernels take these
    }
    auto shape = at::empty_strided(tensor.sizes(), tensor.strides(),
                                   tensor.options().device(at::kMeta).pinned_memory(false));
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) shape.unsafeGetTensorImpl()->set_wrapped_number(true);
    return shape;
  }
  void take(const c10::IValue& value, bool writes, bool is_generator) {
    Argument argument;
    if (value.isTensor()) {
      argument.kind = Kind::tensor;
      shapes.emplace_back(shape_of(value.toTensor(), writes, argument));
    } else if (value.isTensorList()) {
      argument.kind = Kind::list;
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : value.toTensorVector()) all.push_back(shape_of(each, writes, argument));
      shapes.emplace_back(all);
    } else if (value.isOptionalTensorList()) {
      argument.kind = Kind::optionals;
      c10::List<std::optional<at::Tensor>> all;
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorVector()) {
        auto shape = shape_of(each.value_or(at::Tensor()), writes, argument);
        all.push_back(shape.defined() ? std::optional<at::Tensor>(shape) : std::nullopt);
      }
      shapes.emplace_back(all);
    } else if (value.isDevice()) {
      argument.value = c10::Device(at::kCPU);
      shapes.emplace_back(c10::Device(at::kMeta));
    } else {
      draws = draws || is_generator;
      if (!value.isGenerator()) argument.value = value;
      shapes.push_back(value.isGenerator() ? c10::IValue() : value);
    }
    arguments.push_back(std::move(argument));
  }
};

// The kernel's arguments, in the stream's thread.
inline torch::jit::Stack on_cpu(const std::vector<Argument>& arguments, int generator, uint64_t seed) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < arguments.size(); i++) {
    const Argument& each = arguments[i];
    if (each.kind == Kind::tensor) stack.emplace_back(seen(each.tensors[0]));
    else if (each.kind == Kind::list) {
      std::vector<at::Tensor> all;
      for (auto& one : each.tensors) all.push_back(seen(one));
      stack.emplace_back(all);
    } else if (each.kind == Kind::optionals) {
      c10::List<std::optional<at::Tensor>> all;
      for (auto& one : each.tensors) all.push_back(one.exists ? std::optional<at::Tensor>(seen(one)) : std::nullopt);
      stack.emplace_back(all);
    } else if ((int)i == generator && each.value.isNone()) stack.emplace_back(at::detail::createCPUGenerator(seed));
    else stack.push_back(each.value);
  }
  return stack;
}

// As if the operator waited for the device, for shapes that depend on values.
inline void waiting_fallback(const c10::OperatorHandle& op, const std::string& name, torch::jit::Stack* stack) {
  wait_for_stream(current_stream(), name);
  at::native::cpu_fallback(op, stack);
}

inline int device_of(const std::vector<c10::IValue>& given) {
  for (auto& each : given) {
    if (each.isTensor() && is_here(each.toTensor())) return each.toTensor().device().index();
    if (each.isTensorList())
      for (const at::Tensor& one : each.toTensorVector()) if (is_here(one)) return one.device().index();
    if (each.isDevice() && each.toDevice().has_index()) return each.toDevice().index();
  }
  return current_device;
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, stack);
  OnDevice here(device_of(call.given));
  const auto& returns = op.schema().returns();
  const bool in_place = call.is_in_place();
  if (in_place) call.shapes.assign(returns.size(), c10::IValue());
  else {
    try { c10::Dispatcher::singleton().callBoxed(op, &call.shapes); }
    catch (const c10::Error&) { return waiting_fallback(op, call.about.name, stack); }
  }
  // What is written in place is the argument itself, the rest is new memory.
  std::vector<c10::IValue> results;
  std::vector<std::vector<Flat>> targets(returns.size());
  auto fresh = [&](const at::Tensor& shape, std::vector<Flat>& to) {
    if (!shape.defined()) { to.push_back({}); return at::Tensor(); }
    auto made = at::empty_strided(shape.sizes(), shape.strides(),
                                  shape.options().device(at::Device(kType, (c10::DeviceIndex)current_device)));
    to.push_back(flat(made));
    if (made.storage().nbytes()) call.places.push_back({start_of(made), true});
    return made;
  };
  for (size_t r = 0; r < returns.size(); r++) {
    if (const auto* alias = returns[r].alias_info()) {
      for (size_t i = 0; i < call.given.size() && results.size() == r; i++) {
        const auto* mine = op.schema().arguments()[i].alias_info();
        if (!(mine && alias->isWrite() && mine->isWrite() && mine->beforeSets() == alias->beforeSets())) continue;
        auto& given = call.given[i];
        if (!in_place && given.isTensor() && given.toTensor().defined() &&
            given.toTensor().sizes() != call.shapes[r].toTensor().sizes()) {
          given.toTensor().resize_(call.shapes[r].toTensor().sizes());
          call.arguments[i].tensors[0] = flat(given.toTensor());
          call.places.push_back({start_of(given.toTensor()), true});
        }
        results.push_back(given);
      }
      TORCH_CHECK(results.size() == r + 1, "sim: ", call.about.name, " returns a view");
    } else if (call.shapes[r].isTensor()) results.emplace_back(fresh(call.shapes[r].toTensor(), targets[r]));
    else if (call.shapes[r].isTensorList()) {
      std::vector<at::Tensor> made;
      for (const at::Tensor& each : call.shapes[r].toTensorVector()) made.push_back(fresh(each, targets[r]));
      results.emplace_back(made);
    } else return waiting_fallback(op, call.about.name, stack);
  }
  const uint64_t seed = call.draws ? draw() : 0;
  const int generator = call.about.generator;
  enqueue(current_stream(), call.about.name, call.places,
          [op, arguments = std::move(call.arguments), targets, generator, seed] {
    at::AutoDispatchBelowAutograd below;
    auto stack = on_cpu(arguments, generator, seed);
    c10::Dispatcher::singleton().callBoxed(op, &stack);
    if (settings.kernel_us > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(settings.kernel_us));
    for (size_t r = 0; r < targets.size(); r++) {
      std::vector<at::Tensor> made;
      if (targets[r].empty()) continue;
      if (stack[r].isTensor()) made.push_back(stack[r].toTensor());
      else made = stack[r].toTensorVector();
      for (size_t k = 0; k < made.size(); k++)
        if (made[k].defined() && made[k].numel()) seen(targets[r][k]).copy_(made[k]);
    }
  });
  torch::jit::drop(*stack, call.given.size());
  for (auto& each : results) torch::jit::push(*stack, std::move(each));
}

// ------------------------------------------------------------------------------ by hand
using Sizes = at::IntArrayRef;
inline at::Tensor empty(Sizes size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  OnDevice here(device && device->has_index() ? device->index() : current_device);
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}
inline at::Tensor empty_strided(Sizes size, Sizes stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                                std::optional<at::Device> device, std::optional<bool>) {
  OnDevice here(device && device->has_index() ? device->index() : current_device);
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}
inline at::Tensor as_strided(const at::Tensor& self, Sizes size, Sizes stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
inline at::Tensor view(const at::Tensor& self, Sizes size) { return at::native::view(self, size); }
inline at::Tensor reshape_alias(const at::Tensor& self, Sizes size, Sizes stride) {
  return at::native::_reshape_alias(self, size, stride);
}
inline const at::Tensor& resize_(const at::Tensor& self, Sizes size, std::optional<at::MemoryFormat>) {
  OnDevice here(self.device().index());
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  size_t need = at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
  if (need > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), need);
  return self;
}
inline at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, Sizes size, Sizes stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}
inline at::Tensor& set_source(at::Tensor& self, at::Storage source) {
  int64_t count = source.nbytes() / self.itemsize();
  return set_storage(self, std::move(source), 0, {count}, {1});
}
inline at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& tensor) {
  return set_storage(self, tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}
inline at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  OnDevice here((is_here(target) ? target : source).device().index());
  const bool crosses = is_here(source) != is_here(target), outwards = is_here(source);
  TORCH_CHECK(crosses || source.device() == target.device(), "sim: a copy between its devices is not modelled");
  at::Tensor from = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  const at::Tensor& host = outwards ? target : source;
  const bool is_pinned = crosses && at::detail::getPrivateUse1Hooks().isPinnedPtr(host.storage().data());
  const bool negates = source.is_neg() != target.is_neg(), conjugates = source.is_conj() != target.is_conj();
  at::Tensor held = (crosses && !is_pinned && !outwards) ? source : at::Tensor();
  enqueue(current_stream(), crosses ? (outwards ? "copy to host" : "copy to device") : "copy",
          {{start_of(source), false}, {start_of(target), true}},
          [one = flat(from), other = flat(target), size = target.nbytes(), crosses, negates, conjugates, held] {
    at::AutoDispatchBelowAutograd below;
    const double rate = settings.bytes_per_s;        // the bytes arrive at the very end of the time
    if (crosses && rate > 0) std::this_thread::sleep_for(std::chrono::duration<double>(size / rate));
    auto value = seen(one);
    if (conjugates) value = value.conj();
    if (negates) value = value.neg();
    seen(other).copy_(value);
  });
  if (crosses && !(non_blocking && is_pinned))
    wait_for_stream(current_stream(), outwards ? "copy to the host" : "copy from pageable memory");
  return target;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (source.sizes() != target.sizes()) const_cast<at::Tensor&>(target).resize_(source.sizes());
  return copy_from(source, target, false);
}
inline at::Scalar local_scalar(const at::Tensor& self) {
  auto host = at::empty({}, self.options().device(at::kCPU));
  copy_from(self.reshape({}), host, false);
  return host.item();
}
inline std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  auto mask = at::empty_like(x, x.options().dtype(at::kBool));
  mask.bernoulli_(1 - p);
  return {x * mask * (1 / (1 - p)), mask};
}
inline void record_stream_of(at::Tensor& self, at::Stream stream) {
  record_stream(start_of(self), stream.device_index() * kStreamsEach + (int)stream.id());
}
inline void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  fallback(op, stack);
}
inline void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  auto& all = *stack;                                // without the sizes of the bias
  size_t first = all.size() - 10;
  auto weight = all[first + 2].toTensor();
  int64_t channels = all[first + 6].toBool() ? weight.size(1) * all[first + 8].toInt() : weight.size(0);
  all.insert(all.begin() + first + 3, c10::IValue(std::vector<int64_t>{channels}));
  fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Storage", TORCH_FN(set_source));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("record_stream", TORCH_FN(record_stream_of));
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}
#define SIM_LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIM_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOW)
  AT_FORALL_FP32(SIM_FP32)
  AT_FORALL_PROMOTE(SIM_PROMOTE)
}

}  // namespace sim
