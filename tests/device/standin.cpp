// An accelerator for tests, without hardware: memory of the host behind a device type of its own ("standin").
//
// Every operator runs the kernel of the CPU, so that results have the CPU's bits. Before that, it is checked that the
// call would be allowed on a GPU: tensors of the host among those of the device are refused, and so are generators of
// the host. Fresh memory holds NaN. What would make the host wait for a GPU is counted.
//
// Nothing is said of a GPU's arithmetic, speed or memory, and there are no streams: a copy has always arrived.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

using at::Tensor;
using Bounds = c10::SymIntArrayRef;
constexpr auto STANDIN = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(STANDIN, 0);

bool on_device(const Tensor& t) { return t.defined() && t.device().type() == STANDIN; }
at::IntArrayRef ints(Bounds sizes) { return C10_AS_INTARRAYREF_SLOW(sizes); }

// ---- what would make the host wait

std::mutex counting;
std::map<std::string, int64_t> counts;

void count(const std::string& what) {
  std::lock_guard<std::mutex> lock(counting);
  counts[what]++;
}

// ---- memory

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (data) std::memset(data, 0xFF, bytes);  // NaN as a float, -1 as an integer
    return {data, data, &c10::free_cpu, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
DeviceMemory memory;
REGISTER_ALLOCATOR(STANDIN, &memory)

std::mutex pinning;
std::set<const void*> pinned;

void unpin(void* data) {
  {
    std::lock_guard<std::mutex> lock(pinning);
    pinned.erase(data);
  }
  c10::free_cpu(data);
}

// Memory of the host from which a GPU copies by itself.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes ? bytes : 1);
    std::lock_guard<std::mutex> lock(pinning);
    pinned.insert(data);
    return {data, data, &unpin, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
PinnedMemory pinned_memory;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(pinning);
  return pinned.count(data) > 0;
}

// ---- the device as torch asks for it

struct Guard final : c10::impl::NoOpDeviceGuardImpl<STANDIN> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static auto generator = at::make_generator<at::CPUGeneratorImpl>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(); }
  c10::Device getDeviceFromPtr(void*) const override { return DEVICE; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

// A generator for draws on the device. Without it they continue the draws of the host, so that bits can be compared.
std::unique_ptr<at::Generator> own_generator;

// ---- the same memory under the other device type

void release(void* storage) { delete static_cast<c10::Storage*>(storage); }

Tensor aliased(const Tensor& t, c10::Device device, c10::DispatchKey key, c10::Allocator* allocator) {
  auto* owner = new c10::Storage(t.storage());
  c10::DataPtr data(owner->mutable_data(), owner, &release, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), owner->nbytes(), std::move(data), allocator, true);
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), t.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  out.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
  return out;
}
Tensor host_alias(const Tensor& t) { return aliased(t, c10::kCPU, c10::DispatchKey::CPU, c10::GetCPUAllocator()); }
Tensor device_alias(const Tensor& t) { return aliased(t, DEVICE, c10::DispatchKey::PrivateUse1, &memory); }

// ---- every operator that has no kernel of its own below

const std::set<std::string> INDEXED = {"aten::index", "aten::_unsafe_index", "aten::index_put_",
                                       "aten::_index_put_impl_", "aten::index_put", "aten::_unsafe_index_put"};
const std::set<std::string> READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                                     "aten::_unique2", "aten::equal"};
// Operators that take a number of the host, as a tensor without dimensions.
const std::set<std::string> MIXED = {
    "add",  "sub",  "rsub", "mul",     "div",     "add_", "sub_",        "mul_",       "div_",          "pow",
    "eq",   "ne",   "lt",   "le",      "gt",      "ge",   "maximum",     "minimum",    "where",         "masked_fill",
    "fmod", "lerp", "clamp", "atan2",  "fill_",   "index_put_", "_index_put_impl_", "masked_fill_", "remainder",
    "bitwise_and",  "bitwise_or",      "logical_and", "logical_or"};

bool takes_number(const std::string& name) { return name.rfind("aten::", 0) == 0 && MIXED.count(name.substr(6)); }

// Operators whose kernels on CUDA may give other bits each time, and have no alternative: the documentation of
// torch.use_deterministic_algorithms, in names of operators. Left out is what torch.nn.functional replaces by itself.
const std::set<std::string> VARYING = {
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward", "avg_pool3d_backward", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward", "max_pool3d_with_indices_backward", "max_unpool2d", "max_unpool3d",
    "grid_sampler_2d_backward", "grid_sampler_3d_backward", "upsample_linear1d_backward", "upsample_bicubic2d_backward",
    "upsample_trilinear3d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward",
    "reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward",
    "nll_loss2d_forward", "nll_loss2d_backward",
    "_ctc_loss_backward", "histc", "kthvalue", "median.dim", "nanmedian.dim", "put_", "scatter_reduce", "index_reduce"};

std::string with_overload(const c10::OperatorName& of) {
  return of.name.substr(6) + (of.overload_name == "dim" ? ".dim" : "");
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op(op), schema(op.schema()), stack(stack) {}

  void run() {
    const auto arguments = schema.arguments().size();
    const auto begin = stack->size() - arguments;
    std::vector<c10::IValue> given(stack->begin() + begin, stack->end());
    if (READS.count(name)) count("read: " + name);
    if (VARYING.count(with_overload(op.operator_name()))) at::globalContext().alertNotDeterministic(name);
    for (size_t i = 0; i < arguments; i++) admit((*stack)[begin + i], schema.arguments()[i].name());
    TORCH_CHECK(somewhere, "stand-in: ", name, " was called without a tensor of the device");
    op.callBoxed(stack);
    follow_resized();
    const auto first = stack->size() - schema.returns().size();
    for (size_t i = 0; i < schema.returns().size(); i++) hand_back((*stack)[first + i], schema.returns()[i], given);
  }

 private:
  const c10::OperatorHandle& op;
  const c10::FunctionSchema& schema;
  torch::jit::Stack* stack;
  const std::string& name = schema.name();
  std::vector<std::pair<Tensor, Tensor>> aliases;
  bool somewhere = false;

  // Replace an argument by what the CPU's kernel takes.
  void admit(c10::IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      value = admitted(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      std::vector<Tensor> out;
      for (const Tensor& t : value.toTensorVector()) out.push_back(admitted(t, argument));
      value = c10::IValue(out);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (std::optional<Tensor> t : value.toOptionalTensorList())
        out.push_back(t ? std::optional<Tensor>(admitted(*t, argument)) : t);
      value = c10::IValue(out);
    } else if (value.isDevice()) {
      value = c10::IValue(c10::Device(c10::kCPU));
      somewhere = true;
    } else if (value.isGenerator()) {
      TORCH_CHECK(false, "stand-in: ", name, " was given a generator of the host");
    } else if (argument == "generator" && value.isNone() && own_generator) {
      value = c10::IValue(*own_generator);
      count("draw on the device");
    }
  }

  Tensor admitted(const Tensor& t, const std::string& argument) {
    if (!t.defined()) return t;
    const bool index = INDEXED.count(name) && argument == "indices";
    if (on_device(t)) {
      aliases.emplace_back(t, host_alias(t));
      somewhere = true;
      return aliases.back().second;
    }
    TORCH_CHECK(t.device().is_cpu(), "stand-in: ", name, " was given a tensor on ", t.device());
    TORCH_CHECK(index || (t.dim() == 0 && takes_number(name)), "stand-in: ", name, ": argument ", argument,
                " of shape ", t.sizes(), " is on the host, and others are on the device");
    if (index) count("copy: index of the host");
    return t;
  }

  // A kernel may have given an argument another size.
  void follow_resized() {
    for (auto& [outer, inner] : aliases) {
      if (outer.sizes() == inner.sizes() && outer.strides() == inner.strides() &&
          outer.storage_offset() == inner.storage_offset())
        continue;
      auto* to = outer.unsafeGetTensorImpl();
      to->set_storage_keep_dtype(device_alias(inner).storage());
      to->set_sizes_and_strides(inner.sizes(), inner.strides());
      to->set_storage_offset(inner.storage_offset());
    }
  }

  void hand_back(c10::IValue& value, const c10::Argument& result, const std::vector<c10::IValue>& given) {
    const auto* alias = result.alias_info();
    if (alias && alias->isWrite()) {  // an argument that was changed in place: the caller's own tensor
      for (size_t i = 0; i < given.size(); i++) {
        const auto* argument = schema.arguments()[i].alias_info();
        if (argument && argument->isWrite() && argument->beforeSets() == alias->beforeSets()) value = given[i];
      }
    } else if (value.isTensor() && value.toTensor().defined()) {
      TORCH_CHECK(!alias, "stand-in: ", name, " returns a view, and needs a kernel of its own");
      value = device_alias(value.toTensor());
    } else if (value.isTensorList()) {
      TORCH_CHECK(!alias, "stand-in: ", name, " returns views, and needs a kernel of its own");
      std::vector<Tensor> out;
      for (const Tensor& t : value.toTensorVector()) out.push_back(t.defined() ? device_alias(t) : t);
      value = c10::IValue(out);
    }
  }
};

void any_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op, stack).run(); }

// ---- what every device has to bring along

Tensor empty(Bounds size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device>,
             std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "only memory of the host can be pinned");
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(ints(size), &memory, keys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(Bounds size, Bounds stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<c10::Device>, std::optional<bool>) {
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(ints(size), ints(stride), &memory, keys, c10::dtype_or_default(dtype));
}

Tensor side(const Tensor& t) { return on_device(t) ? host_alias(t) : t; }

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (on_device(from) && !on_device(to)) {
    TORCH_CHECK(!non_blocking, "stand-in: a copy towards the host that nobody waits for may be read too early");
    count("copy: to the host");
  } else if (on_device(to) && !on_device(from)) {
    const bool ahead = non_blocking && is_pinned(from.storage().data());
    count(ahead ? "asynchronous copy" : non_blocking ? "copy: not pinned" : "copy: to the device");
  }
  side(to).copy_(side(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

Tensor view(const Tensor& t, Bounds size) { return at::native::view(t, ints(size)); }
Tensor as_strided(const Tensor& t, Bounds size, Bounds stride, std::optional<c10::SymInt> offset) {
  const auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(t, ints(size), ints(stride), start);
}
Tensor reshape_alias(const Tensor& t, Bounds size, Bounds stride) {
  return at::native::_reshape_alias(t, ints(size), ints(stride));
}
Tensor& set_storage(Tensor& t, at::Storage storage) {
  const auto n = static_cast<int64_t>(storage.nbytes() / t.dtype().itemsize());
  return at::native::set_storage_cpu_(t, storage, 0, {n}, {});
}
Tensor& set_storage_at(Tensor& t, at::Storage storage, c10::SymInt offset, Bounds size, Bounds stride) {
  return at::native::set_storage_cpu_(t, storage, offset.expect_int(), ints(size), ints(stride));
}
Tensor& set_tensor(Tensor& t, const Tensor& other) {
  return at::native::set_storage_cpu_(t, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

// As the CPU's dropout, but drawn where the device draws.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  TORCH_CHECK(train.value_or(true), "stand-in: dropout was asked for outside of training");
  const auto mask = at::empty_like(x).bernoulli_(1 - p);
  return {x.mul(mask).mul_(1 / (1 - p)), mask.to(at::kBool)};
}

Tensor only_device(const Tensor& t, const char* what) {
  TORCH_CHECK(!t.defined() || on_device(t), "stand-in: ", what, " was given tensors of the host and of the device");
  return t.defined() ? host_alias(t) : t;
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Bounds stride,
                   Bounds padding, Bounds dilation, bool transposed, Bounds output_padding, c10::SymInt groups) {
  const char* me = "convolution";
  const auto b = bias ? std::optional<Tensor>(only_device(*bias, me)) : std::nullopt;
  return device_alias(at::convolution(only_device(x, me), only_device(weight, me), b, ints(stride), ints(padding),
                                      ints(dilation), transposed, ints(output_padding), groups.expect_int()));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        Bounds stride, Bounds padding, Bounds dilation,
                                                        bool transposed, Bounds output_padding, c10::SymInt groups,
                                                        std::array<bool, 3> mask) {
  const char* me = "the backward pass of a convolution";
  auto [gx, gw, gb] = at::convolution_backward(
      only_device(grad, me), only_device(x, me), only_device(weight, me), at::IntArrayRef({weight.size(transposed)}),
      ints(stride), ints(padding), ints(dilation), transposed, ints(output_padding), groups.expect_int(), mask);
  const auto back = [](const Tensor& t) { return t.defined() ? device_alias(t) : t; };
  return {back(gx), back(gw), back(gb)};
}

// ---- what Python asks of it

c10::Dict<std::string, int64_t> take_counts() {
  std::lock_guard<std::mutex> lock(counting);
  c10::Dict<std::string, int64_t> out;
  for (const auto& [what, n] : counts) out.insert(what, n);
  counts.clear();
  return out;
}
void draw_apart(bool apart) { own_generator.reset(apart ? new at::Generator(Hooks().getNewGenerator(0)) : nullptr); }
void seed(int64_t value) {
  if (own_generator) own_generator->set_current_seed(static_cast<uint64_t>(value));
}
Tensor generator_state() {
  return own_generator ? own_generator->get_state() : at::detail::getDefaultCPUGenerator().get_state();
}
void set_generator_state(const Tensor& state) {
  if (own_generator) own_generator->set_state(state);
}
void synchronize() { count("wait: for the device"); }

}  // namespace

TORCH_LIBRARY(standin, m) {
  m.def("take_counts() -> Dict(str, int)", &take_counts);
  m.def("draw_apart(bool apart) -> ()", &draw_apart);
  m.def("seed(int value) -> ()", &seed);
  m.def("generator_state() -> Tensor", &generator_state);
  m.def("set_generator_state(Tensor state) -> ()", &set_generator_state);
  m.def("synchronize() -> ()", &synchronize);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&any_operator>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("view", TORCH_FN(view));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("native_dropout", TORCH_FN(native_dropout));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_at));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
#define IN_BFLOAT16(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define IN_THE_WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(IN_BFLOAT16)
  AT_FORALL_FP32(IN_FLOAT32)
  AT_FORALL_PROMOTE(IN_THE_WIDEST)
}
