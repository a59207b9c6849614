// What GCC's headers and libstdc++ take from glibc 2.32 and newer, for libraries that load with 2.28
// (cmake/Manylinux.cmake).

// Whether the process has one thread alone, where atomic operations could be spared. False is always safe.
extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
}

// What GCC's own start files do when a library is unloaded, and zig's do not: without it the process's exit calls the
// destructors of static objects that are no longer there.
extern "C" {
extern void* __dso_handle;
void __cxa_finalize(void* library);
int __cxa_atexit(void (*function)(void*), void* argument, void* library);

// glibc links its own into every library, and that one passes what __dso_handle holds, which is nothing with zig: the
// CUDA runtime's functions would be called when the library is gone.
__attribute__((visibility("hidden"))) int atexit(void (*function)()) {
  return __cxa_atexit([](void* given) { reinterpret_cast<void (*)()>(given)(); }, reinterpret_cast<void*>(function),
                      &__dso_handle);
}
}
namespace {
__attribute__((destructor)) void DestroyStaticObjects() { __cxa_finalize(&__dso_handle); }
}  // namespace
