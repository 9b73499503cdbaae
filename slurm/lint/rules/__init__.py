"""The rules of `muster lint`. Every function marked with `@rule` in a module here is one."""
