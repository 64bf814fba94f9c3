// SPDX-License-Identifier: Apache-2.0
// Ref<T>: an intrusive reference-counting pointer (T has retain() and release()). A ticket is shared by the
// front, which may cancel it, and the engine, which completes it; the last reference frees it.
#pragma once

#include <utility>

namespace fused_mlp {

template <class T>
class Ref {
 public:
  Ref() noexcept = default;
  // Takes over a reference the caller already owns.
  static Ref adopt(T* object) noexcept {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  // Adds a reference.
  static Ref share(T* object) noexcept {
    if (object) object->retain();
    return adopt(object);
  }
  Ref(const Ref& other) noexcept : object_(other.object_) {
    if (object_) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(other.leak()) {}
  template <class U>
  Ref(Ref<U>&& other) noexcept : object_(other.leak()) {}  // to a base class
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  void reset() noexcept { *this = Ref(); }
  // Returns the pointer without releasing the reference.
  [[nodiscard]] T* leak() noexcept { return std::exchange(object_, nullptr); }

 private:
  T* object_ = nullptr;
};

// Creates a T that has one reference.
template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::adopt(new T(std::forward<Args>(args)...));
}

}  // namespace fused_mlp
