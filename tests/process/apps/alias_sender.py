"""A program on PyMySQL under MySQLdb's name, as every Django on PyMySQL is one: it sends while others do."""

import importlib
import sys

import pymysql

if sys.argv[1] == "before":
    pymysql.install_as_MySQLdb()
    importlib.import_module("MySQLdb.converters")  # makes pymysql.err another module

from emsworker import Ems

app = Ems("alias")
count, start = int(sys.argv[2]), int(sys.argv[3])
app.send("alias", {"n": start})
if sys.argv[1] == "after":
    pymysql.install_as_MySQLdb()
    importlib.import_module("MySQLdb.converters")
assert pymysql.err.OperationalError is not pymysql.connections.err.OperationalError, "the alias does what it does"
print("ready", flush=True)
sys.stdin.readline()
for number in range(1, count):
    app.send("alias", {"n": start + number})
