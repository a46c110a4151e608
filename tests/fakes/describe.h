/* Prints how a function takes its arguments, for tests/foreign_kit.py. */
#include <cstddef>
#include <cstdio>
#include <type_traits>
template <class T, class = void> struct Size { static constexpr size_t value = 0; };
template <class T> struct Size<T, decltype(void(sizeof(T)))>
{ static constexpr size_t value = std::is_function<T>::value ? 0 : sizeof(T); };
template <> struct Size<void> { static constexpr size_t value = 0; };
template <> struct Size<const void> { static constexpr size_t value = 0; };
template <class T> int kind()
{
	const char *name = std::is_void<T>::value ? "void" : std::is_pointer<T>::value ? "pointer"
		: std::is_same<T, bool>::value ? "bool" : std::is_enum<T>::value ? "enum"
		: std::is_floating_point<T>::value ? "float" : std::is_class<T>::value ? "struct"
		: std::is_signed<T>::value ? "signed" : "unsigned";
	using Target = typename std::remove_pointer<T>::type;
	return printf(" %s:%zu:%zu", name, Size<T>::value,
		std::is_pointer<T>::value ? Size<Target>::value : size_t(0));
}
template <class F> struct Show;
template <class R, class... A> struct Show<R(A...)> {
	static void call() { kind<R>(); int all[] = {0, kind<A>()...}; (void)all; printf("\n"); }
};
template <class R, class... A> struct Show<R(A..., ...)> {
	static void call() { kind<R>(); int all[] = {0, kind<A>()...}; (void)all; printf(" ...\n"); }
};
