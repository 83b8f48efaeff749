"""PyMySQL under MySQLdb's name, as Django projects have it: on PYTHONPATH, it makes ``pymysql.err`` another module."""

import importlib

import pymysql

pymysql.install_as_MySQLdb()
importlib.import_module("MySQLdb.converters")
