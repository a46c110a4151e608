/* Included before every file: functions that glibc 2.32 to 2.34 moved into libc.so are taken by the version under which
 * every glibc has them, so that the object also loads in containers of older distributions. */
#ifdef __aarch64__
#define OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_2.17") /* there the first */
#else
#define OLD(name, version) __asm__(".symver " #name "," #name "@GLIBC_" #version)
#endif

OLD(dlclose, 2.2.5);
OLD(dlopen, 2.2.5);
OLD(dlsym, 2.2.5);
OLD(pthread_attr_setstacksize, 2.2.5);
OLD(pthread_condattr_setclock, 2.3.3);
OLD(pthread_create, 2.2.5);
OLD(pthread_sigmask, 2.2.5);
