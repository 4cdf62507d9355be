PRAGMA application_id=1296387393;
BEGIN TRANSACTION;
CREATE TABLE backups (
	path TEXT NOT NULL, 
	PRIMARY KEY (path)
);
CREATE TABLE heads (
	ns TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	hash TEXT NOT NULL, 
	PRIMARY KEY (ns)
);
INSERT INTO "heads" VALUES('',1,'db3f567847399f5c530a9aa167d7c1e10ab21a5376ce867f3e2ca5c28dc61776');
INSERT INTO "heads" VALUES('1973ca896d7541ce52465ad196afbc13',14,'70af21a63952158cbe2384aca0d86e21f5f95f3740a4fc211a6e9c51c9953689');
CREATE TABLE log (
	ns TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	entry TEXT NOT NULL, 
	gone INTEGER NOT NULL, 
	time TEXT NOT NULL, 
	note TEXT NOT NULL, 
	commitment TEXT NOT NULL, 
	previous TEXT NOT NULL, 
	hash TEXT NOT NULL, 
	salt TEXT, 
	body TEXT, 
	PRIMARY KEY (ns, seq)
);
INSERT INTO "log" VALUES('',1,'begin','1973ca896d7541ce52465ad196afbc13',0,'2026-11-23T09:31:11.293025Z','','dfb483799b9708512b917b929af79001114cf69dfbde36314de0df1086b4472a','7220259db172353f11e702cc869b2c1ce3f10b97e335c7f433cc82927a05f384','db3f567847399f5c530a9aa167d7c1e10ab21a5376ce867f3e2ca5c28dc61776','818f88d9999ce0626edd6963f09fce60615cd7eaa7064fdcc624b8974801cff2','{"user":"marta","agent":"default","session":"default","schema":{"name":"test","sections":[["core","block",false],["facts","list",true],["notes","list",false]]}}');
INSERT INTO "log" VALUES('1973ca896d7541ce52465ad196afbc13',10,'base','',0,'2026-11-23T09:31:11.904879Z','{"next_id": 5, "entries": 3, "receipts": [["4", "2026-11-23T09:31:11.704552Z", 1, []]]}','','f7a39db35e3fd52e3acde8326d8a78b359b45ac545b0edbdfae9d28f7d1c3f32','e007743de4857fdab7993fbe24b127e184d4fe23c08f02400f348761f58a65af',NULL,NULL);
INSERT INTO "log" VALUES('1973ca896d7541ce52465ad196afbc13',11,'keep','1',0,'2026-11-23T09:31:11.904879Z','','89770d6f86721c53d4a85563cb6a8061426883781b18fa30a411ac35f7f48119','e007743de4857fdab7993fbe24b127e184d4fe23c08f02400f348761f58a65af','50d26ab27e671340d3036b3cfbb58411cb131344ae864ab75886d0b5f69ae09c','42ac2d2108515ac15748274f61d590afcd42db55ba17ef4ae877035241d63ab2','{"after":{"id":"1","section":"facts","content":"Marta lives in Oslo","timestamp":"2024-01-01","importance":1.0,"source_chunk":3,"created":1,"updated":1}}');
INSERT INTO "log" VALUES('1973ca896d7541ce52465ad196afbc13',12,'keep','core',0,'2026-11-23T09:31:11.904879Z','','60d7a96287ccab8779ad879045203b26db99f635a2ced5ffcfe8c766a7011cee','50d26ab27e671340d3036b3cfbb58411cb131344ae864ab75886d0b5f69ae09c','8c430cf4b057efba1d701fd664aa77c76d7ec092e9508e9cb957c11b500085c3','0197a68521d3ddc0d3850a5693d9de3a9b3e745090113a6fc98e3a60d4c9cf79','{"after":{"id":"core","section":"core","content":"likes rain","timestamp":null,"importance":1.0,"source_chunk":null,"created":4,"updated":4}}');
INSERT INTO "log" VALUES('1973ca896d7541ce52465ad196afbc13',13,'keep','3',0,'2026-11-23T09:31:11.904879Z','','bed286213ffe4e763e01d0c797b2542c7acc468df5076281e640a7a3b5d85153','8c430cf4b057efba1d701fd664aa77c76d7ec092e9508e9cb957c11b500085c3','bda4d986e3e11edba4cf0b2cfcb296320829194e67806e3096a8e57b9ab22f05','360e510c595a144bac4c1ac7ca9d82e013fba4356afc02cf790ee635888ea67e','{"after":{"id":"3","section":"notes","content":"tea","timestamp":null,"importance":1.0,"source_chunk":null,"created":6,"updated":6}}');
INSERT INTO "log" VALUES('1973ca896d7541ce52465ad196afbc13',14,'apply','5',0,'2026-11-23T09:31:12.037357Z','','2de9b6fff6cac0c419bad950753599a2ab16be26916f138911197bcde68fd9b2','bda4d986e3e11edba4cf0b2cfcb296320829194e67806e3096a8e57b9ab22f05','70af21a63952158cbe2384aca0d86e21f5f95f3740a4fc211a6e9c51c9953689','62ddeb47f216c189b00c0d5011f6eff6070788ae56adc66977246e30eca33228','{"origin":["tester","chunk-7","ab12"],"operation":{"kind":"insert","section":"notes","content":"later"},"chunk":null,"said":null,"after":{"id":"5","section":"notes","content":"later","timestamp":null,"importance":1.0,"source_chunk":null,"created":14,"updated":14}}');
CREATE TABLE secrets (
	ns TEXT NOT NULL, 
	secret TEXT NOT NULL, 
	PRIMARY KEY (ns)
);
INSERT INTO "secrets" VALUES('1973ca896d7541ce52465ad196afbc13','5f016cf12419a7609a3029ed1f43fba58aa1d04251bde5faa507ac11635377e0');
CREATE TABLE state (
	one INTEGER NOT NULL, 
	format INTEGER NOT NULL, 
	commits BIGINT NOT NULL, 
	mix TEXT NOT NULL, 
	scrub INTEGER NOT NULL, 
	PRIMARY KEY (one)
);
INSERT INTO "state" VALUES(1,1,0,'',0);
COMMIT;
